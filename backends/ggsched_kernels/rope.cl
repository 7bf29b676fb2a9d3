/* Rotary position embedding of x (1, T, H, D); one group takes one position and all its heads, so
 * that sine and cosine are computed once. y may be x: a pair is read before it is written.
 *
 * A frequency is a fixed-point number of turns per position, in units of 2^-60: the product with
 * the position then wraps around at whole turns without losing a bit, where a float angle of
 * 100000 radians would be wrong by 0.008.
 */
#define ADJACENT 0
#define HALVES 1

/* Divide a frequency by a float factor with the precision of the integer: by the 24 bits of the
 * factor, once more for the remainder, and shifted by its exponent. */
FN i64 divided(i64 frequency, float factor) {
  u32 bits = BITS_OF_FLOAT(factor);
  int shift = 150 - (int)((bits >> 23) & 255);
  i64 mantissa = (i64)((bits & 0x7fffffu) | 0x800000u);
  i64 quotient = frequency / mantissa, rest = frequency % mantissa;
  if (shift <= 0)
    quotient = shift > -64 ? quotient >> -shift : 0;
  else if (shift < 39)
    quotient = quotient * ((i64)1 << shift) + rest * ((i64)1 << shift) / mantissa;
  else
    quotient = shift < 63 ? quotient * ((i64)1 << shift) : 0;
  return (bits >> 31) ? -quotient : quotient;
}

/* The angle, at most pi either way, of turns in units of 2^-64. Without the assumption SIN and COS contain the reduction of
 * large angles, which takes local memory and reads a table in global memory (NVRTC 13.0: by ld.global.nc). */
FN float angle_of(u64 turns) {
  float angle = (float)(i32)(turns >> 32) * 1.4629180792671596e-9f; /* 2 pi / 2^32 */
  ASSUME_WITHIN(angle, 4.0f);
  return angle;
}

/* Sine and cosine of pair i, times the magnitude. */
#define TURN(i, s, c)                                                                     \
  i64 frequency = frequencies[i];                                                         \
  if (has_factors) frequency = divided(frequency, READ_F32(factors + tf.off + i * tf.s[3])); \
  u64 turns = ((u64)position * (u64)frequency) << 4;                                      \
  float angle = angle_of(turns);                                                          \
  float s = SIN(angle) * magnitude, c = COS(angle) * magnitude;                           \
  int i0 = pairing == ADJACENT ? 2 * i : i, i1 = pairing == ADJACENT ? 2 * i + 1 : i + pairs

KERNEL(rope)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *positions, Tens tp, GLOBAL const u8 *factors,
             Tens tf, GLOBAL u8 *y, Tens ty, GLOBAL const i64 *frequencies, int pairs, int pairing,
             int has_factors, float magnitude) {
  int t = GROUP(0), heads = tx.n[2], rest = tx.n[3] - 2 * pairs;
  i64 position = READ_I32(positions + tp.off + t * tp.s[3]);
  GLOBAL const u8 *xt = x + tx.off + t * tx.s[1];
  GLOBAL u8 *yt = y + ty.off + t * ty.s[1];
  i64 sx = tx.s[3], sy = ty.s[3];
  for (int i = LANE; i < pairs; i += LANES) {
    TURN(i, s, c);
    for (int h = 0; h < heads; h++) {
      GLOBAL const u8 *xh = xt + h * tx.s[2];
      GLOBAL u8 *yh = yt + h * ty.s[2];
      float a = READ_F32(xh + i0 * sx), b = READ_F32(xh + i1 * sx);
      F32_AT(yh + i0 * sy) = a * c - b * s;
      F32_AT(yh + i1 * sy) = a * s + b * c;
    }
  }
  for (int i = LANE; i < rest * heads; i += LANES) {
    int h = i / rest, d = 2 * pairs + i % rest;
    F32_AT(yt + h * ty.s[2] + d * sy) = READ_F32(xt + h * tx.s[2] + d * sx);
  }
}

/* The same into rows of a cache: position t becomes row ids[t] of dst (rows, H * D), f32 or, with
 * `to_half`, f16. An id out of range writes nothing. */
#define STORE(p, x)                                          \
  do {                                                       \
    if (to_half)                                             \
      *(GLOBAL u16 *)(p) = (u16)HALF_OF_FLOAT(x);            \
    else                                                     \
      F32_AT(p) = (x);                                       \
  } while (0)

KERNEL(rope_set_rows)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *positions, Tens tp,
                      GLOBAL const u8 *factors, Tens tf, GLOBAL u8 *dst, Tens td, GLOBAL const u8 *ids,
                      Tens ti, GLOBAL const i64 *frequencies, int pairs, int pairing, int has_factors,
                      float magnitude, int to_half, GLOBAL i32 *fault, int code) {
  int t = GROUP(0), heads = tx.n[2], width = tx.n[3], rest = width - 2 * pairs;
  int id = READ_I32(ids + ti.off + t * ti.s[3]);
  if (bad_id(id, td.n[2], fault, code)) return;
  i64 position = READ_I32(positions + tp.off + t * tp.s[3]);
  GLOBAL const u8 *xt = x + tx.off + t * tx.s[1];
  GLOBAL u8 *yt = dst + td.off + id * td.s[2];
  i64 sx = tx.s[3], sy = td.s[3];
  for (int i = LANE; i < pairs; i += LANES) {
    TURN(i, s, c);
    for (int h = 0; h < heads; h++) {
      GLOBAL const u8 *xh = xt + h * tx.s[2];
      GLOBAL u8 *yh = yt + h * width * sy;
      float a = READ_F32(xh + i0 * sx), b = READ_F32(xh + i1 * sx);
      STORE(yh + i0 * sy, a * c - b * s);
      STORE(yh + i1 * sy, a * s + b * c);
    }
  }
  for (int i = LANE; i < rest * heads; i += LANES) {
    int h = i / rest, d = 2 * pairs + i % rest;
    STORE(yt + (h * width + d) * sy, READ_F32(xt + h * tx.s[2] + d * sx));
  }
}
