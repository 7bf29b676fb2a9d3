/* Dialect: what the lanes of a warp do together. The counterpart of warp_cuda.h. OpenCL C 1.2 has no warps: lanes meet at
 * barriers of the whole group, so all of them must come by. With HAS_PTX, which a device has where the probe of
 * ggsched_opencl/matrix_units.py found so, 32 lanes are a warp that runs inline PTX.
 */
#define WARP 32
#define WARP_LANE (LANE % WARP)
#define WARP_INDEX (LANE / WARP)
#define WARPS_APART 0
#define LOCAL_BYTES(name) LOCAL u8 name[LOCAL_NBYTES] __attribute__((aligned(16)))

/* MULTIPLY_HALVES: sum += a b for a of 16 rows and b of 8 columns of 16 numbers of f16, or with W_BF16 or BF16_PAIRS of bf16. Lane 4 g + t
 * has of a the pair from 2 t of row g, that of row g + 8, and those from 2 t + 8 of both; of b those pairs of column g; of the
 * sum columns 2 t and 2 t + 1 of row g, and of row g + 8. */
#if HAS_PTX
#define UNROLL_MEETING UNROLL
#define WARP_SYNC() asm volatile("bar.warp.sync 0xffffffff;" : : : "memory")
FN float exchanged_(float x, int mask) {
  float other;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(other) : "f"(x), "r"(mask));
  return other;
}
#define EXCHANGED(x, mask, scratch) exchanged_((x), (mask))

#define HALVES_WORDS 1 /* of scratch for each lane */
#if defined(W_BF16) || BF16_PAIRS
#define HALF_TYPE "bf16"
#else
#define HALF_TYPE "f16"
#endif
FN void multiply_halves_(float *sum, const u32 *a, const u32 *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF_TYPE "." HALF_TYPE ".f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define MULTIPLY_HALVES(sum, a, b, scratch) multiply_halves_((sum), (a), (b))
FN u32 half_pair_(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#define HALF_PAIR(low, high) half_pair_((low), (high))
FN u32 permuted_(u32 a, u32 b, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}
FN u32 less_1152_(u32 pair) {
  u32 difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(pair), "r"(0x64806480u));
  return difference;
}
/* 1152 + byte in f16 is 0x6400 | byte + 128. */
FN void byte_pairs_(u32 *to, u32 bytes) {
  bytes ^= 0x80808080u;
  to[0] = less_1152_(permuted_(bytes, 0x64646464u, 0x4140u));
  to[1] = less_1152_(permuted_(bytes, 0x64646464u, 0x4342u));
}
FN float float_of_half_(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
#define FLOAT_OF_HALF(bits) float_of_half_((u16)(bits))
FN int dot4_(u32 a, u32 b, int sum) {
  int all;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(all) : "r"(a), "r"(b), "r"(sum));
  return all;
}
FN u32 funnel_(u32 low, u32 high, int shift) {
  u32 word;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(shift));
  return word;
}
FN void copy16_(LOCAL_PTR void *to, GLOBAL const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((u32)(u64)to), "l"(from) : "memory");
}
#define COPY16(to, from) copy16_((to), (from))
FN void copy4_(LOCAL_PTR void *to, GLOBAL const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"((u32)(u64)to), "l"(from) : "memory");
}
#define COPY4(to, from) copy4_((to), (from))
#define COPIES_CLOSE() asm volatile("cp.async.commit_group;" : : : "memory")
#define COPIES_AWAIT(newer) asm volatile("cp.async.wait_group %0;" : : "n"(newer) : "memory")
#else
#define WARP_SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#define UNROLL_MEETING /* PoCL takes minutes for many barriers */
FN float exchanged_(float x, int mask, LOCAL_PTR float *scratch) {
  scratch[LANE] = x;
  WARP_SYNC();
  float other = scratch[LANE ^ mask];
  WARP_SYNC();
  return other;
}
#define EXCHANGED(x, mask, scratch) exchanged_((x), (mask), (scratch))

#define COPY16(to, from) (*(LOCAL_PTR u4 *)(to) = *(GLOBAL const u4 *)(from))
#define COPY4(to, from) (*(LOCAL_PTR u32 *)(to) = *(GLOBAL const u32 *)(from))
#define COPIES_CLOSE()
#define COPIES_AWAIT(newer)
#define HALVES_WORDS 6
FN float one_half_(LOCAL_PTR const u32 *pair, int i) {
#if defined(W_BF16) || BF16_PAIRS
  return as_float(pair[0] >> 16 * i << 16);
#else
  return vload_half(i, (LOCAL_PTR const half *)pair);
#endif
}
FN void multiply_halves_(float *sum, const u32 *a, const u32 *b, LOCAL_PTR u32 *scratch) {
  LOCAL_PTR u32 *warp = scratch + WARP_INDEX * WARP * 6;
  for (int i = 0; i < 4; i++) warp[WARP_LANE * 6 + i] = a[i];
  for (int i = 0; i < 2; i++) warp[WARP_LANE * 6 + 4 + i] = b[i];
  WARP_SYNC();
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < 16; k++) {
      LOCAL_PTR const u32 *row = warp + (WARP_LANE / 4 * 4 + k / 2 % 4) * 6 + i / 2 + k / 8 * 2;
      LOCAL_PTR const u32 *column = warp + ((WARP_LANE % 4 * 2 + i % 2) * 4 + k / 2 % 4) * 6 + 4 + k / 8;
      sum[i] += one_half_(row, k % 2) * one_half_(column, k % 2);
    }
  }
  WARP_SYNC();
}
#define MULTIPLY_HALVES(sum, a, b, scratch) multiply_halves_((sum), (a), (b), (scratch))
FN u32 half_pair_(float low, float high) {
  u16 bits[2];
  vstore_half_rte(low, 0, (half *)bits);
  vstore_half_rte(high, 1, (half *)bits);
  return bits[0] | (u32)bits[1] << 16;
}
#define HALF_PAIR(low, high) half_pair_((low), (high))
FN void byte_pairs_(u32 *to, u32 bytes) {
  for (int i = 0; i < 2; i++, bytes >>= 16) to[i] = half_pair_((float)(i8)bytes, (float)(i8)(bytes >> 8));
}
FN u32 permuted_(u32 a, u32 b, u32 selector) {
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = (selector >> 4 * i) & 7;
    r |= (((s < 4 ? a : b) >> 8 * (s & 3)) & 255) << 8 * i;
  }
  return r;
}
FN u32 funnel_(u32 low, u32 high, int shift) { return low >> shift | high << 1 << (31 - shift); }
FN int dot4_(u32 a, u32 b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += (int)(char)(a >> i) * (int)(char)(b >> i);
  return sum;
}
#endif

#define LOAD16_ONCE(p) LOAD16(p)

typedef int Gate;
#define MEET(lanes) BARRIER()

/* Four signed bytes as two pairs of f16. */
#define BYTE_PAIRS(to, bytes) byte_pairs_((to), (bytes))
#define PERMUTED(a, b, selector) permuted_((a), (b), (selector))
#define FUNNEL(low, high, shift) funnel_((low), (high), (shift))
#define DOT4(a, b, sum) dot4_((a), (b), (sum)) /* of four signed bytes each */
/* A unit that multiplies small matrices, see warp_cuda.h; `scratch` has MULTIPLY_WORDS for each lane. */
FN void multiply_add_(int *sum, const u32 *a, const u32 *b, LOCAL_PTR u32 *scratch) {
  LOCAL_PTR u32 *warp = scratch + WARP_INDEX * WARP * 6;
  for (int i = 0; i < 4; i++) warp[WARP_LANE * 6 + i] = a[i];
  for (int i = 0; i < 2; i++) warp[WARP_LANE * 6 + 4 + i] = b[i];
  WARP_SYNC();
  for (int i = 0; i < 4; i++) {
    for (int t = 0; t < 4; t++) {
      LOCAL_PTR const u32 *row = warp + (WARP_LANE / 4 * 4 + t) * 6 + i / 2;
      LOCAL_PTR const u32 *column = warp + ((WARP_LANE % 4 * 2 + i % 2) * 4 + t) * 6 + 4;
      sum[i] = dot4_(row[0], column[0], dot4_(row[2], column[1], sum[i]));
    }
  }
  WARP_SYNC();
}
#define MULTIPLY_WORDS 6
#define MULTIPLY_ADD(sum, a, b, scratch) multiply_add_((sum), (a), (b), (scratch))
