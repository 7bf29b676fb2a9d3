/* The kernel of racecheck_cluster.py: stretches of WORDS words come by asynchronous copies, as those of tile_product do;
 * then each block of a cluster stores its sums in the shared memory of the others, and adds up what it got. */
typedef unsigned int u32;
#define LANE ((int)threadIdx.x)
#define STAGES (VARIANT == 3 ? 2 : 1)
static __device__ inline u32 local_address_(const void *p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
static __device__ inline void fetch(u32 *to, const u32 *from) {
  for (int i = LANE; i < WORDS / 4; i += LANES)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(local_address_(to + 4 * i)), "l"(from + 4 * i)
                 : "memory");
}
static __device__ inline void put4(u32 *to, int block, uint4 x) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(local_address_(to)), "r"(block));
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(there), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
#define CLOSE() asm volatile("cp.async.commit_group;" ::: "memory")
#define AWAIT() asm volatile("cp.async.wait_group 0;" ::: "memory")

extern "C" __global__ void __launch_bounds__(LANES, 1) __cluster_dims__(BLOCKS, 1, 1)
exchange(const u32 *w, u32 *sums) {
  extern __shared__ __align__(16) u32 stages[]; /* 2 * WORDS, and 4 * BLOCKS * LANES behind them */
  const u32 *from = w + (size_t)blockIdx.x * ROUNDS * WORDS;
  uint4 sum = make_uint4(0, 0, 0, 0);
  fetch(stages, from);
  CLOSE();
  for (int n = 0; n < ROUNDS; n++) {
    AWAIT();
    __syncthreads(); /* the stretch is there for all, and all are done with the one before it */
    if (STAGES == 2 && n + 1 < ROUNDS) fetch(stages + (n + 1) % 2 * WORDS, from + (n + 1) * WORDS);
    CLOSE();
    const u32 *words = stages + n % STAGES * WORDS;
    for (int i = 4 * LANE; i < WORDS; i += 4 * LANES)
      sum.x += words[i], sum.y += words[i + 1], sum.z += words[i + 2], sum.w += words[i + 3];
    if (STAGES == 1 && n + 1 < ROUNDS) {
      __syncthreads();
      fetch(stages, from + (n + 1) * WORDS);
      CLOSE();
    }
  }
  AWAIT();
  u32 *arrived = VARIANT == 1 ? stages + 2 * WORDS : stages; /* 1: where no copy went */
#if VARIANT != 2                                             /* 2: others may still copy and read: a real race */
  cluster_barrier();
#endif
  for (int block = 0; block < BLOCKS; block++) put4(arrived + 4 * (blockIdx.x % BLOCKS * LANES + LANE), block, sum);
  cluster_barrier();
  u32 all = 0;
  for (int i = LANE; i < 4 * BLOCKS * LANES; i += LANES) all += arrived[i];
  sums[blockIdx.x * LANES + LANE] = all;
}
