/* Dialect: what the lanes of a warp do together, in OpenCL C 1.2, which has no warps: lanes meet at
 * barriers of the whole group, so all of them must come by. The counterpart of warp_cuda.h.
 */
#define WARP 32
#define WARP_LANE (LANE % WARP)
#define WARP_INDEX (LANE / WARP)
#define WARPS_APART 0
#define WARP_SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#define UNROLL_MEETING /* PoCL takes minutes for many barriers */
#define LOCAL_BYTES(name) LOCAL u8 name[LOCAL_NBYTES] __attribute__((aligned(16)))

FN float exchanged_(float x, int mask, LOCAL_PTR float *scratch) {
  scratch[LANE] = x;
  WARP_SYNC();
  float other = scratch[LANE ^ mask];
  WARP_SYNC();
  return other;
}
#define EXCHANGED(x, mask, scratch) exchanged_((x), (mask), (scratch))

#define LOAD16_ONCE(p) LOAD16(p)

#define COPY16(to, from) (*(LOCAL_PTR u4 *)(to) = *(GLOBAL const u4 *)(from))
#define COPIES_CLOSE()
#define COPIES_AWAIT(newer)

typedef int Gate;
#define MEET(lanes) BARRIER()

FN u32 permuted_(u32 a, u32 b, u32 selector) {
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = (selector >> 4 * i) & 7;
    r |= (((s < 4 ? a : b) >> 8 * (s & 3)) & 255) << 8 * i;
  }
  return r;
}
#define PERMUTED(a, b, selector) permuted_((a), (b), (selector))
FN u32 funnel_(u32 low, u32 high, int shift) { return low >> shift | high << 1 << (31 - shift); }
#define FUNNEL(low, high, shift) funnel_((low), (high), (shift))
/* A unit that multiplies small matrices, see warp_cuda.h; `scratch` has MULTIPLY_WORDS for each lane. */
FN int dot4_(u32 a, u32 b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += (int)(char)(a >> i) * (int)(char)(b >> i);
  return sum;
}
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
