/* The kernel of racecheck_ring.py. */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u64 Gate;
#define FN static __device__ inline
#define LANE ((int)threadIdx.x)
#define WORDS (SIDE_NBYTES / 4)

FN u32 local_address_(const void *p) { return (u32)__cvta_generic_to_shared(p); }
FN void gate_open(Gate *gate, int lanes) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(local_address_(gate)), "r"(lanes) : "memory");
}
FN void gate_arrive(Gate *gate) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n }" ::"r"(local_address_(gate))
               : "memory");
}
#define GATES_READY() \
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory")
FN void gate_announce(Gate *gate, int nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(local_address_(gate)), "r"(nbytes)
               : "memory");
}
FN void gate_announce_more(Gate *gate, int nbytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(local_address_(gate)),
               "r"(nbytes)
               : "memory");
}
FN void copy_span(u8 *to, const u8 *from, int nbytes, Gate *gate) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          local_address_(to)),
      "l"(from), "r"(nbytes), "r"(local_address_(gate))
      : "memory");
}
FN void gate_await(Gate *gate, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred open;\n"
      "CLOSED%=:\n"
      "mbarrier.try_wait.parity.shared.b64 open, [%0], %1;\n"
      "@!open bra CLOSED%=;\n"
      " }" ::"r"(local_address_(gate)), "r"(phase)
      : "memory");
}

/* Stage `n` of this group: WORDS words of w, and as many of v. In variant 0 they lie side by side in w. */
FN void fill(u8 *to, const u8 *w, const u8 *v, int n, Gate *full, Gate *other) {
#if VARIANT == 0
  gate_announce(full, 2 * SIDE_NBYTES);
  copy_span(to, w + (u64)n * 2 * SIDE_NBYTES, 2 * SIDE_NBYTES, full);
#elif VARIANT == 2
  gate_announce_more(full, SIDE_NBYTES);
  gate_announce(full, SIDE_NBYTES);
  copy_span(to + SIDE_NBYTES, v + (u64)n * SIDE_NBYTES, SIDE_NBYTES, full);
  copy_span(to, w + (u64)n * SIDE_NBYTES, SIDE_NBYTES, full);
#elif VARIANT == 3
  gate_announce(other, SIDE_NBYTES);
  copy_span(to + SIDE_NBYTES, v + (u64)n * SIDE_NBYTES, SIDE_NBYTES, other);
  gate_announce(full, SIDE_NBYTES);
  copy_span(to, w + (u64)n * SIDE_NBYTES, SIDE_NBYTES, full);
#else
  gate_announce(full, 2 * SIDE_NBYTES);
  copy_span(to + SIDE_NBYTES, v + (u64)n * SIDE_NBYTES, SIDE_NBYTES, full);
  copy_span(to, w + (u64)n * SIDE_NBYTES, SIDE_NBYTES, full);
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS + 32, 1)
ring(const u8 *w, const u8 *v, u32 *sums) {
  extern __shared__ __align__(128) u8 stages[];
  __shared__ Gate full[STAGES], other[STAGES], empty[STAGES];
  if (LANE < STAGES) {
    gate_open(full + LANE, 1);
    gate_open(other + LANE, 1);
    gate_open(empty + LANE, WARPS);
    GATES_READY();
  }
  __syncthreads();
  int buffer = 0, phase = 0, first = blockIdx.x * ROUNDS;
  if (LANE >= 32 * WARPS) {
    if (LANE > 32 * WARPS) return;
    for (int n = 0; n < ROUNDS; n++) {
      /* Before the first phase of a gate ends, waiting for the one before returns at once. */
      if (VARIANT != 4) gate_await(empty + buffer, phase ^ 1);
      fill(stages + buffer * 2 * SIDE_NBYTES, w, v, first + n, full + buffer, other + buffer);
      /* The gates have to stay whole in the variant that tears what they guard. */
      if (VARIANT == 4) gate_await(full + buffer, phase);
      if (++buffer == STAGES) buffer = 0, phase ^= 1;
    }
    return;
  }
  u32 sum = 0;
  for (int n = 0; n < ROUNDS; n++) {
    /* Of a torn ring a phase can be missed for good, so that one reads what is there. */
    if (VARIANT != 4) gate_await(full + buffer, phase);
    if (VARIANT == 3) gate_await(other + buffer, phase);
    const u32 *words = (const u32 *)(stages + buffer * 2 * SIDE_NBYTES);
    for (int i = LANE; i < WORDS; i += 32 * WARPS) sum += words[i] + 3 * words[WORDS + i];
    __syncwarp();
    if (LANE % 32 == 0) gate_arrive(empty + buffer);
    if (++buffer == STAGES) buffer = 0, phase ^= 1;
  }
  sums[blockIdx.x * 32 * WARPS + LANE] = sum;
}
