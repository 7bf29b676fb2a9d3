/* Shared by all kernels, in the dialect of the prologue. */

/* A tensor at a place: byte offset from its pointer, byte strides and extents of four axes,
 * outermost first; missing axes have extent 1 and stride 0. */
typedef struct {
  i64 off;
  i64 s[4];
  i32 n[4];
} Tens;

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define VMIN(a, b) VSELECT((a) < (b), a, b)
#define VMAX(a, b) VSELECT((a) > (b), a, b)

/* Byte offset of row `row`, counted row-major over the outer three axes. */
FN i64 row_offset(const Tens t, int row) {
  int rest = row / t.n[2];
  return t.off + rest / t.n[1] * t.s[0] + rest % t.n[1] * t.s[1] + row % t.n[2] * t.s[2];
}

/* Kernels that cut rows into parts have one group for each. */
#define ROW GROUP(0)
#define PART GROUP(1)

#define F32_AT(p) (*(GLOBAL float *)(p))
#define READ_F32(p) (*(GLOBAL const float *)(p))
#define READ_I32(p) (*(GLOBAL const i32 *)(p))

/* An id that came with the data is checked before it becomes an address. The first bad one is
 * reported: the number of its node, the id, and how many rows there are. (Any of several that race
 * for it will do.) */
FN int bad_id(int id, int count, GLOBAL i32 *fault, int code) {
  if (id >= 0 && id < count) return 0;
  if (fault[0] == 0) {
    fault[1] = id;
    fault[2] = count;
    fault[0] = code;
  }
  return 1;
}

/* The row that an id names in a table of `count` rows, which has those from `first` on, of `of`; -1 if it is elsewhere,
 * or out of range, which is reported. */
FN int row_here(int id, int first, int of, int count, GLOBAL i32 *fault, int code) {
  int row = id - first;
  return bad_id(id, of, fault, code) || row < 0 || row >= count ? -1 : row;
}

/* The expert of pair (t, u) in a weight with `count` of them. Ids (first expert of the weight, experts in all, T, U). */
FN int expert_of(GLOBAL const u8 *ids, const Tens ti, int t, int u, int count, GLOBAL i32 *fault, int code) {
  int id = READ_I32(ids + ti.off + t * ti.s[2] + u * ti.s[3]);
  return row_here(id, ti.n[0], ti.n[1], count, fault, code);
}

/* Elements i of [from, to) in VECTOR steps where `unit` says that all lie side by side, the rest
 * one by one. */
#define ELEMENTS(i, from, to, unit, VECTOR, ITEM)                                   \
  do {                                                                              \
    int cut_ = (unit) ? (from) + ((to) - (from)) / VW * VW : (from);                \
    for (int i = (from) + LANE * VW; i < cut_; i += LANES * VW) VECTOR              \
    for (int i = cut_ + LANE; i < (to); i += LANES) ITEM                            \
  } while (0)

/* f16 bits to f32, one or many, where the prologue has nothing better: shift into a float whose
 * exponent is 112 too small and correct that by a multiplication, which is right for subnormals
 * too; see to infinities and NaN. */
#define DEFINE_FLOAT_OF_HALF(name, F, U, FLOAT, BITS)                               \
  FN F name(U bits) {                                                               \
    U magnitude = (bits & 0x7fffu) << 13;                                           \
    U finite = BITS(FLOAT(magnitude) * FLOAT_OF_BITS(0x77800000u));                 \
    U value = VSELECT(magnitude >= 0x0f800000u, magnitude | 0x7f800000u, finite);   \
    return FLOAT(value | ((bits & 0x8000u) << 16));                                 \
  }
#ifndef FLOAT_OF_HALF
DEFINE_FLOAT_OF_HALF(float_of_half, float, u32, FLOAT_OF_BITS, BITS_OF_FLOAT)
#define FLOAT_OF_HALF(bits) float_of_half(bits)
#endif
#ifndef VLOAD_HALF
DEFINE_FLOAT_OF_HALF(vfloat_of_half, vf, vu, VFLOAT_OF_BITS, VBITS_OF_FLOAT)
#define VLOAD_HALF(p) vfloat_of_half(VLOAD_U16(p))
#endif

/* f32 to f16 bits, to nearest and ties to even: adding 0.5 rounds in the place of a subnormal's
 * last bit; elsewhere add just below half of the last bit, and one more if that bit is odd. */
#define DEFINE_HALF_OF_FLOAT(name, F, U, FLOAT, BITS)                                   \
  FN U name(F x) {                                                                      \
    U bits = BITS(x);                                                                   \
    U m = bits & 0x7fffffffu;                                                           \
    U small = BITS(FLOAT(m) + 0.5f) - 0x3f000000u;                                      \
    U normal = (m + 0xc8000fffu + ((m >> 13) & 1u)) >> 13;                              \
    U huge = VSELECT(m > 0x7f800000u, (m & 0u) + 0x7e00u, (m & 0u) + 0x7c00u);          \
    U value = VSELECT(m >= 0x47800000u, huge, VSELECT(m < 0x38800000u, small, normal)); \
    return value | ((bits & 0x80000000u) >> 16);                                        \
  }
#ifndef HALF_OF_FLOAT
DEFINE_HALF_OF_FLOAT(half_of_float, float, u32, FLOAT_OF_BITS, BITS_OF_FLOAT)
#define HALF_OF_FLOAT(x) half_of_float(x)
#endif
#ifndef VSTORE_HALF
DEFINE_HALF_OF_FLOAT(vhalf_of_float, vf, vu, VFLOAT_OF_BITS, VBITS_OF_FLOAT)
#define VSTORE_HALF(v, p) VSTORE_U16(vhalf_of_float(v), (p))
#endif

/* Sum and maximum over the lanes of a group; `scratch` is a local array of LANES floats. */
#if LANES > 32 && defined(__OPENCL_VERSION__) /* three barriers, not one for each bit of LANES */
#define DEFINE_GROUP_REDUCTION(name, COMBINED)                                      \
  FN float name(float x, LOCAL_PTR float *scratch) {                                \
    scratch[LANE] = x;                                                              \
    BARRIER();                                                                      \
    float a = x;                                                                    \
    for (int i = LANE + 32; LANE < 32 && i < LANES; i += 32) {                      \
      float b = scratch[i];                                                         \
      a = COMBINED;                                                                 \
    }                                                                               \
    if (LANE < 32) scratch[LANE] = a;                                               \
    BARRIER();                                                                      \
    a = scratch[0];                                                                 \
    for (int i = 1; i < 32; i++) {                                                  \
      float b = scratch[i];                                                         \
      a = COMBINED;                                                                 \
    }                                                                               \
    BARRIER();                                                                      \
    return a;                                                                       \
  }
#elif LANES > 1
#define DEFINE_GROUP_REDUCTION(name, COMBINED)                                      \
  FN float name(float x, LOCAL_PTR float *scratch) {                                \
    scratch[LANE] = x;                                                              \
    BARRIER();                                                                      \
    for (int step = LANES / 2; step > 0; step /= 2) {                               \
      if (LANE < step) {                                                            \
        float a = scratch[LANE], b = scratch[LANE + step];                          \
        scratch[LANE] = COMBINED;                                                   \
      }                                                                             \
      BARRIER();                                                                    \
    }                                                                               \
    float all = scratch[0];                                                         \
    BARRIER();                                                                      \
    return all;                                                                     \
  }
#endif
#if LANES > 1
DEFINE_GROUP_REDUCTION(group_sum, a + b)
DEFINE_GROUP_REDUCTION(group_top, MAX(a, b))
#else
#define group_sum(x, scratch) (x)
#define group_top(x, scratch) (x)
#endif
