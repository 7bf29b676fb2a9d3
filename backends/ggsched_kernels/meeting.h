/* How the groups of a merged kernel meet, in front of its functions; OpenCL C alone. */
typedef struct {
  __global uint *arrived; /* how many groups have come so far */
  __global int *fault;
  uint patience, count; /* looks, and how many have to come */
  int code, step, is_due;
} Meeting_;

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
static inline int have_met_(__global uint *arrived, uint count, uint patience) {
  for (uint i = 0; i < patience; i++)
    if (arrived_(arrived) >= count) return 1;
  return 0;
}

/* Wait for what earlier phases write, unless that was done in this phase. All lanes come by. */
static inline __attribute__((always_inline)) void await_(Meeting_ *met_) {
  if (!met_->is_due) return;
  met_->is_due = 0;
  if (get_local_id(0) == 0 && met_->patience > 0 && !have_met_(met_->arrived, met_->count, met_->patience)) {
    met_->fault[1] = met_->step, met_->fault[2] = -2, met_->fault[0] = met_->code;
    met_->patience = 0; /* it is too late for all of it */
  }
  ALL_();
}
