/* The kernel of racecheck_cluster.py: STAGES of WORDS words come by asynchronous copies, as tile_product's do; then each
 * block of a cluster stores its sums in the shared memory of the others, and adds up what it got. */
typedef unsigned int u32;
#define LANE ((int)threadIdx.x)
static __device__ inline u32 local_address_(const void *p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
static __device__ inline void copy16(u32 *to, const u32 *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(local_address_(to)), "l"(from) : "memory");
}
static __device__ inline void put(u32 *to, int block, u32 value) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.u32 [there], %2;\n }" ::"r"(
          local_address_(to)),
      "r"(block), "r"(value)
      : "memory");
}

extern "C" __global__ void __launch_bounds__(LANES, 1) __cluster_dims__(BLOCKS, 1, 1)
exchange(const u32 *w, u32 *sums) {
  extern __shared__ __align__(16) u32 stages[]; /* WORDS, and BLOCKS * LANES behind them */
  u32 sum = 0;
  for (int n = 0; n < ROUNDS; n++) {
    const u32 *from = w + (size_t)(blockIdx.x * ROUNDS + n) * WORDS;
    for (int i = LANE; i < WORDS / 4; i += LANES) copy16(stages + 4 * i, from + 4 * i);
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    for (int i = LANE; i < WORDS; i += LANES) sum += stages[i];
    __syncthreads();
  }
  u32 *arrived = VARIANT == 1 ? stages + WORDS : stages; /* 1: where no copy went */
#if VARIANT != 2                                         /* 2: others may still copy and read: a real race */
  cluster_barrier();
#endif
  for (int block = 0; block < BLOCKS; block++) put(arrived + blockIdx.x % BLOCKS * LANES + LANE, block, sum);
  cluster_barrier();
  u32 all = 0;
  for (int block = 0; block < BLOCKS; block++) all += arrived[block * LANES + LANE];
  sums[blockIdx.x * LANES + LANE] = all;
  cluster_barrier(); /* nobody leaves before others have stored */
}
