/* Arrays of up to eight axes, of any plain type.
 *
 * The host defines A_T, B_T, C_T (operands), Y_T (result): names of element types.
 */

#ifdef __OPENCL_VERSION__
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define R_f16(p) vload_half(0, (GLOBAL const half *)(p))
#define W_f16(p, v) vstore_half_rte((v), 0, (GLOBAL half *)(p))
#else
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define R_f16(p) FLOAT_OF_HALF(READ_AT(u16, p))
#define W_f16(p, v) (PLAIN_AT(u16, p) = HALF_OF_FLOAT(v))
#ifndef INFINITY
#define INFINITY __uint_as_float(0x7f800000u)
#endif
FN float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
#endif

/* Byte offsets of operands a, b, c and the result, byte strides, and the extents they share,
 * outermost first; missing axes have extent 1. */
typedef struct {
  i64 off[4];
  i64 s[4][8];
  i32 n[8];
} Nd;

/* What values are computed in, by type; f16 is computed in f32. */
#define V_f32 float
#define V_f16 float
#define V_f64 double
#define V_i64 i64
#define V_i32 i32
#define V_i16 short
#define V_i8 i8
#define V_u64 u64
#define V_u32 u32
#define V_u16 u16
#define V_u8 u8
#define V_bool bool

#define PLAIN_AT(T, p) (*(GLOBAL T *)(p))
#define READ_AT(T, p) (*(GLOBAL const T *)(p))
#define R_f32(p) READ_AT(float, p)
#define R_f64(p) READ_AT(double, p)
#define R_i64(p) READ_AT(i64, p)
#define R_i32(p) READ_AT(i32, p)
#define R_i16(p) READ_AT(short, p)
#define R_i8(p) READ_AT(i8, p)
#define R_u64(p) READ_AT(u64, p)
#define R_u32(p) READ_AT(u32, p)
#define R_u16(p) READ_AT(u16, p)
#define R_u8(p) READ_AT(u8, p)
#define R_bool(p) (READ_AT(u8, p) != 0)

#define W_f32(p, v) (PLAIN_AT(float, p) = (v))
#define W_f64(p, v) (PLAIN_AT(double, p) = (v))
#define W_i64(p, v) (PLAIN_AT(i64, p) = (v))
#define W_i32(p, v) (PLAIN_AT(i32, p) = (v))
#define W_i16(p, v) (PLAIN_AT(short, p) = (v))
#define W_i8(p, v) (PLAIN_AT(i8, p) = (v))
#define W_u64(p, v) (PLAIN_AT(u64, p) = (v))
#define W_u32(p, v) (PLAIN_AT(u32, p) = (v))
#define W_u16(p, v) (PLAIN_AT(u16, p) = (v))
#define W_u8(p, v) (PLAIN_AT(u8, p) = (v))
#define W_bool(p, v) (PLAIN_AT(u8, p) = (u8)((v) != 0))

#define VA CAT(V_, A_T)
#define VB CAT(V_, B_T)
#define VC CAT(V_, C_T)
#define VY CAT(V_, Y_T)

/* Unsigned types in which integers wrap; narrow ones are computed in 32 bits. */
#define U_i64 u64
#define U_u64 u64
#define U_i32 u32
#define U_u32 u32
#define U_i16 u32
#define U_u16 u32
#define U_i8 u32
#define U_u8 u32
#define UA CAT(U_, A_T)

/* A divisor that traps for no dividend: remainders by 0 are replaced, those by -1 are 0 as by 1. */
#define WHOLE_DIVISOR(b) ((b) == 0 || (b) == (VA)-1 && (VA)-1 < (VA)1 ? (VA)1 : (b))
/* Towards zero; 0 by 0; the least integer by -1 is itself. */
#define QUOTIENT(a, b) \
  ((b) == 0 ? (UA)0 : (b) == (VA)-1 && (VA)-1 < (VA)1 ? (UA)0 - (UA)(a) : (UA)((a) / WHOLE_DIVISOR(b)))

#define MAGNITUDE(a) ((a) < 0 ? (UA)0 - (UA)(a) : (UA)(a))
FN u64 gcd_of(u64 a, u64 b) {
  while (b) {
    u64 r = a % b;
    a = b;
    b = r;
  }
  return a;
}

/* Integers of floats: towards zero, limited to i64, of which narrower types have the low bits; NaN is 0.
 * For u64 numbers from 0 on are limited to u64 instead. */
FN i64 whole_of(float x) {
  if (x != x) return 0;
  if (x >= 9223372036854775808.0f) return 0x7fffffffffffffff;
  return x < -9223372036854775808.0f ? -0x7fffffffffffffff - 1 : (i64)x;
}
FN u64 unsigned_of(float x) {
  if (x >= 18446744073709551616.0f) return ~(u64)0;
  return x >= 9223372036854775808.0f ? (u64)x : (u64)whole_of(x);
}
#define OF_REAL_f32(x) (x)
#define OF_REAL_f16(x) (x)
#define OF_REAL_f64(x) (x)
#define OF_REAL_i64(x) whole_of(x)
#define OF_REAL_i32(x) whole_of(x)
#define OF_REAL_i16(x) whole_of(x)
#define OF_REAL_i8(x) whole_of(x)
#define OF_REAL_u64(x) unsigned_of(x)
#define OF_REAL_u32(x) whole_of(x)
#define OF_REAL_u16(x) whole_of(x)
#define OF_REAL_u8(x) whole_of(x)
#define OF_REAL_bool(x) (x)

/* The remainder with the sign of the divisor, as numpy has it. */
FN float floor_mod(float a, float b) {
  float r = fmod(a, b);
  if (r == 0.0f) return copysign(0.0f, b);
  return (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

/* NaN wins, as in numpy. */
#define NAN_MIN(a, b) ((a) != (a) ? (a) : (b) != (b) ? (b) : (a) < (b) ? (a) : (b))
#define NAN_MAX(a, b) ((a) != (a) ? (a) : (b) != (b) ? (b) : (a) > (b) ? (a) : (b))

/* Declares oa, ob, oc and oy: where the operands and the result have the first element of this row. */
#define OFFSETS_OF_ROW(t)                                                        \
  i64 oa = (t).off[0], ob = (t).off[1], oc = (t).off[2], oy = (t).off[3];        \
  for (int k_ = 6, rest_ = ROW; k_ >= 0; --k_) {                                 \
    int i_ = rest_ % (t).n[k_];                                                  \
    rest_ /= (t).n[k_];                                                          \
    oa += i_ * (t).s[0][k_];                                                     \
    ob += i_ * (t).s[1][k_];                                                     \
    oc += i_ * (t).s[2][k_];                                                     \
    oy += i_ * (t).s[3][k_];                                                     \
  }

/* The same for one of all elements of t, counted row-major. */
#define OFFSETS_OF_ITEM(t, item)                                                 \
  i64 oa = (t).off[0], ob = (t).off[1], oy = (t).off[3];                         \
  for (int k_ = 7, rest_ = (item); k_ >= 0; --k_) {                              \
    int i_ = rest_ % (t).n[k_];                                                  \
    rest_ /= (t).n[k_];                                                          \
    oa += i_ * (t).s[0][k_];                                                     \
    ob += i_ * (t).s[1][k_];                                                     \
    oy += i_ * (t).s[3][k_];                                                     \
  }
