/* Products of matrices by a warp on tensor cores: sum += a b for a of 16 rows and b of 8 columns, of 16 elements of f16
 * (W_BF16: bf16) in pairs, or of 8 of TF32. Lane 4 g + t has words t and t + 4 of rows g and g + 8 of a and of column g of b, and
 * columns 2 t and 2 t + 1 of rows g and g + 8 of the sum. */
#ifdef W_BF16
#define HALF_TYPE "bf16"
#else
#define HALF_TYPE "f16"
#endif

#define MULTIPLY_(name, shape, types)                                                                          \
  FN void name(float *sum, const u32 *a, const u32 *b) {                                                       \
    asm("mma.sync.aligned." shape ".row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "  \
        "{%0, %1, %2, %3};"                                                                                    \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                               \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                   \
  }
MULTIPLY_(multiply_halves_, "m16n8k16", HALF_TYPE "." HALF_TYPE)
MULTIPLY_(multiply_tf32_, "m16n8k8", "tf32.tf32")
FN u32 pair_of_(float low, float high) {
  u32 pair;
  asm("cvt.rn." HALF_TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
FN u32 tf32_of_(float x) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
#define MULTIPLY_HALVES(sum, a, b) multiply_halves_((sum), (a), (b))
#define MULTIPLY_TF32(sum, a, b) multiply_tf32_((sum), (a), (b))
#define PAIR_OF(low, high) pair_of_((low), (high))
#define TF32_OF(x) tf32_of_(x)
