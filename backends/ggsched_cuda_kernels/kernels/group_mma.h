/* Products of matrices by four warps of compute capability 9.0 (sm_90a), behind mma.h: sum = a b, or += with `adds`, for a of
 * 64 rows in registers and b of 64 columns in shared memory, of 16 elements of f16 (W_BF16: bf16). Lanes have of a and of the sum what they
 * have for mma.m16n8k16, warp i of rows 16 i on. Columns of b (MULTIPLY_TURNED: its 16 rows) are rows of 128 bytes, which lie as SWIZZLED says. The products
 * are under way until PRODUCTS_AWAIT, which leaves as many of the newest sets; registers and shared memory are theirs until then. */
#define SWIZZLED(row, chunk) ((row) * 128 + (((chunk) ^ ((row) & 7)) << 4)) /* byte of a chunk of 16, in tiles of 1024 */
#ifndef GROUP_MMA
#define GROUP_MMA 0
#endif
#if GROUP_MMA
#define LOCAL_ADDRESS(p) ((u32)__cvta_generic_to_shared(p))
#define D_(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MULTIPLY_GROUP_(name, turned)                                                                                     \
  FN void name(float *d, const u32 *a, const u8 *b, int adds) {                                                           \
    /* Rows of 128 bytes, 8 of them 1024 bytes from the next 8, swizzled. */                                              \
    u64 at = (LOCAL_ADDRESS(b) >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;                                    \
    asm volatile(                                                                                                         \
        "{\n"                                                                                                             \
        ".reg .pred more;\n"                                                                                              \
        "setp.ne.b32 more, %37, 0;\n"                                                                                     \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." HALF_TYPE "." HALF_TYPE " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " \
        "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "  \
        "{%32, %33, %34, %35}, %36, more, 1, 1, " turned ";\n"                                                            \
        "}"                                                                                                               \
        : D_(0), D_(4), D_(8), D_(12), D_(16), D_(20), D_(24), D_(28)                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at), "r"(adds));                                                \
  }
MULTIPLY_GROUP_(multiply_group_, "0")
MULTIPLY_GROUP_(multiply_turned_, "1")
#define MULTIPLY_GROUP(d, a, b, adds) multiply_group_((d), (a), (b), (adds))
#define MULTIPLY_TURNED(d, a, b, more) multiply_turned_((d), (a), (b), (more))
/* Lets products read what this lane has copied to shared memory, behind the next barrier. */
#define PRODUCTS_SEE() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define PRODUCTS_OPEN() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define PRODUCTS_CLOSE() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define PRODUCTS_AWAIT(newer) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newer) : "memory")
#define HELD(x) asm volatile("" : "+f"(x)::"memory") /* a register that is written behind the compiler's back */
#endif
