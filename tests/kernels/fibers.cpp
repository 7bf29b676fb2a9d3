/* Runs a cluster of groups on the host: each lane is a fiber, and goes on until it meets others. */
#include <stdlib.h>
#include <vector>

struct Barrier { int arrived = 0, round = 0, of = 0; };
struct Group { std::vector<unsigned char> local; Barrier all; };
struct Fiber {
  void *stack;
  int lane, group, warp, asked = 0;
  bool done = false;
  Barrier *awaited = nullptr;
  int round = 0;
};
static std::vector<Group> groups_;
static std::vector<Barrier> warps_;
static std::vector<float> given_;
static Barrier cluster_;
static std::vector<Fiber> fibers_;
static Fiber *now_;
static void *scheduler_;
static char *stacks_;
static size_t stacks_nbytes_;
static Place block_;
static long arrivals_;

static inline int arrive_(Barrier &m) {
  int round = m.round;
  arrivals_++;
  if (++m.arrived == m.of) m.arrived = 0, m.round++;
  return round;
}
/* Go on with another stack, as swapcontext does but without its system calls (System V ABI, x86-64). */
__attribute__((naked, noinline)) static void switch_(void **from, void *to) {
  asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; mov %rsp, (%rdi);"
      "mov %rsi, %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}
static inline void yield_() { switch_(&now_->stack, scheduler_); }
static inline void await_(Barrier &m, int round) {
  if (m.round != round) return;
  now_->awaited = &m, now_->round = round;
  yield_();
}
static inline void meet_(Barrier &m) { await_(m, arrive_(m)); }

Lane lane_() { return {now_->lane}; }
Place place_() { return {now_->group, block_.y, block_.z}; }
unsigned char *local_() { return groups_[now_->group].local.data(); }
void __syncthreads() { meet_(groups_[now_->group].all); }
void __syncwarp() { meet_(warps_[now_->warp]); }
float exchange_(float x, int from) {
  float *slots = &given_[32 * now_->warp];
  slots[now_->lane % 32] = x;
  __syncwarp();
  float got = slots[from];
  __syncwarp();
  return got;
}
int __any_sync(unsigned, int yes) {
  float any = yes != 0;
  for (int mask = 16; mask > 0; mask /= 2) any += __shfl_xor_sync(0, any, mask);
  return any > 0;
}

/* What the kernel says in words of the machine. */
void cluster_arrive_() { now_->asked = arrive_(cluster_); }
void cluster_await_() { await_(cluster_, now_->asked); }
template <class T>
static void put_(T *p, int group, T x) {
  size_t at = (unsigned char *)p - local_();
  *(T *)(groups_[group].local.data() + at) = x;
}
float4 get4_(const float4 *p, int group) {
  size_t at = (unsigned char *)p - local_();
  return *(float4 *)(groups_[group].local.data() + at);
}
void put4_(float4 *p, int group, float4 x) { put_(p, group, x); }
void put2_(float2 *p, int group, float2 x) { put_(p, group, x); }

static void (*kernel_)();
static void begin_() {
  kernel_();
  now_->done = true;
  yield_();
}
/* Return the top of a stack on which a lane begins. Stacks differ in the cache lines that they use first. */
static void *begun_(int lane) {
  const size_t stride = (64 << 10) + 13 * 64;
  size_t top = (size_t)stacks_ + (lane + 1) * stride;
  void **stack = (void **)(top / 16 * 16);
  *--stack = nullptr, *--stack = (void *)begin_;
  return stack - 6;
}

/* Run the groups (0 .. count, y, z) at the same time; 0 if lanes wait for each other for ever. */
static int run_cluster_(int count, int y, int z, int lanes, int local_nbytes, void (*kernel)()) {
  block_ = {0, y, z}, kernel_ = kernel;
  groups_.assign(count, Group{});
  for (auto &g : groups_) g.local.assign(local_nbytes + 16, 0xff), g.all.of = lanes;
  warps_.assign(count * lanes / 32, Barrier{});
  for (auto &w : warps_) w.of = 32;
  given_.assign(count * lanes, 0.0f);
  cluster_ = {};
  cluster_.of = count * lanes;
  fibers_.assign(count * lanes, Fiber{});
  if (size_t nbytes = (size_t)count * lanes * (65 << 10); nbytes > stacks_nbytes_) {
    free(stacks_);
    stacks_ = (char *)malloc(nbytes), stacks_nbytes_ = nbytes;
  }
  for (int i = 0; i < count * lanes; i++) {
    Fiber &f = fibers_[i];
    f.lane = i % lanes, f.group = i / lanes, f.warp = i / 32;
    f.stack = begun_(i);
  }
  long idle = 0, seen = -1;
  for (long left = count * lanes; left > 0;) {
    idle = seen == arrivals_ ? idle + 1 : 0, seen = arrivals_;
    if (idle > 20000) return 0;
    /* A group goes as far as it gets before the next one does, so that they are far apart. */
    for (int g = 0; g < count; g++) {
      for (long before = -1; before != arrivals_;) {
        before = arrivals_;
        for (int i = g * lanes; i < (g + 1) * lanes; i++) {
          Fiber &f = fibers_[i];
          if (f.done || (f.awaited && f.awaited->round == f.round)) continue;
          f.awaited = nullptr, now_ = &f;
          switch_(&scheduler_, f.stack);
          left -= f.done;
        }
      }
    }
  }
  return 1;
}
