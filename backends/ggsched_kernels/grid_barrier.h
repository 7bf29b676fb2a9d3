/* A grid barrier: the groups of a merged kernel wait for each other; in front of its functions, OpenCL C alone. */
typedef struct {
  __global uint *arrived; /* how many groups have come so far */
  __global int *fault;
  uint polls, count; /* looks, and how many have to come */
  int code, step, is_due;
} GridBarrier_;

#if HAS_PTX
static inline void arrive_(__global uint *arrived) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(arrived) : "memory");
}
static inline uint arrived_(__global uint *arrived) {
  uint count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
  return count;
}
#else /* one group */
#define arrive_(arrived) atomic_inc(arrived)
#define arrived_(arrived) atomic_add((arrived), 0u)
#endif
#if LANES > 1
#define ALL_() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
#define ALL_()
#endif

/* Wait until `count` groups have arrived, but not for ever; say whether they have. */
static inline int has_arrived_(__global uint *arrived, uint count, uint polls) {
  for (uint i = 0; i < polls; i++)
    if (arrived_(arrived) >= count) return 1;
  return 0;
}

/* Wait for what earlier phases write, unless that was done in this phase. All lanes come by. */
static inline __attribute__((always_inline)) void await_(GridBarrier_ *barrier_) {
  if (!barrier_->is_due) return;
  barrier_->is_due = 0;
  if (get_local_id(0) == 0 && barrier_->polls > 0 && !has_arrived_(barrier_->arrived, barrier_->count, barrier_->polls)) {
    barrier_->fault[1] = barrier_->step, barrier_->fault[2] = -2, barrier_->fault[0] = barrier_->code;
    barrier_->polls = 0; /* it is too late for all of it */
  }
  ALL_();
}
