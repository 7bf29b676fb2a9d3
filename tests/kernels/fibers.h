/* Runs a cluster of groups on the host: each lane is a fiber, and goes on until it meets others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utility>
#include <vector>
#define __global__
#define __device__
#define __align__(n)
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900
#define ASK_FOR(p) ((void)(p))

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline unsigned __cvta_generic_to_shared(const void *) { return 0; }

struct Place { int x, y, z; };
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

struct Lane { int x; };
static inline Lane lane_() { return {now_->lane}; }
static inline Place place_() { return {now_->group, block_.y, block_.z}; }
#define threadIdx lane_()
#define blockIdx place_()
static inline void __syncthreads() { meet_(groups_[now_->group].all); }
static inline void __syncwarp() { meet_(warps_[now_->warp]); }
static inline float exchange_(float x, int from) {
  float *slots = &given_[32 * now_->warp];
  slots[now_->lane % 32] = x;
  __syncwarp();
  float got = slots[from];
  __syncwarp();
  return got;
}
static inline float __shfl_xor_sync(unsigned, float x, int mask) { return exchange_(x, now_->lane % 32 ^ mask); }
static inline float __shfl_sync(unsigned, float x, int from, int width) {
  return exchange_(x, now_->lane % 32 / width * width + from % width);
}
static inline int bits_(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline float float_(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __shfl_sync(unsigned, int x, int from, int width) { return bits_(__shfl_sync(0, float_(x), from, width)); }
static inline unsigned __shfl_xor_sync(unsigned, unsigned x, int mask) { return bits_(exchange_(float_(x), now_->lane % 32 ^ mask)); }
static inline int __any_sync(unsigned, int yes) {
  float any = yes != 0;
  for (int mask = 16; mask > 0; mask /= 2) any += __shfl_xor_sync(0, any, mask);
  return any > 0;
}

/* What the kernel says in words of the machine. */
static inline void cluster_arrive_() { now_->asked = arrive_(cluster_); }
static inline void cluster_await_() { await_(cluster_, now_->asked); }
template <class T>
static inline void put_(T *p, int group, T x) {
  size_t at = (unsigned char *)p - groups_[now_->group].local.data();
  *(T *)(groups_[group].local.data() + at) = x;
}
static inline float4 get4_(const float4 *p, int group) {
  size_t at = (unsigned char *)p - groups_[now_->group].local.data();
  return *(float4 *)(groups_[group].local.data() + at);
}
static inline void put4_(float4 *p, int group, float4 x) { put_(p, group, x); }
static inline void put2_(float2 *p, int group, float2 x) { put_(p, group, x); }

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
