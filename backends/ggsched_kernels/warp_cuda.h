/* Dialect: what the lanes of a warp do together, in CUDA C++. The counterpart of warp_opencl.h. */
#define WARP 32
#define WARP_LANE (LANE % WARP)
#define WARP_INDEX (LANE / WARP)
/* Whether warps of a group may go different ways between barriers of the group. */
#define WARPS_APART 1
#define WARP_SYNC() __syncwarp()

/* For loops in which lanes exchange something. */
#define UNROLL_MEETING UNROLL

/* Local memory whose size the launch says. */
#define LOCAL_BYTES(name) extern __shared__ __align__(16) u8 name[]

/* A float of the lane whose number differs in the bits of `mask`; all lanes of a group take part. */
#define EXCHANGED(x, mask, scratch) __shfl_xor_sync(0xffffffffu, (x), (mask))


/* Weights are read once, so they need not stay in the first cache. */
FN u4 load_once_(const u8 *p) {
  u4 v;
  asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
#define LOAD16_ONCE(p) load_once_((const u8 *)(p))

/* Copies of 16 aligned bytes to local memory that go on while a lane computes; COPIES_CLOSE ends a set of
 * them, COPIES_AWAIT waits until all but the `newer` latest sets of this lane have arrived. */
FN void copy16_(u8 *to, const u8 *from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;"
               :
               : "r"((u32)__cvta_generic_to_shared(to)), "l"(from)
               : "memory");
}
#define COPY16(to, from) copy16_((to), (from))
#define COPIES_CLOSE() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_AWAIT(newer) asm volatile("cp.async.wait_group %0;" ::"n"(newer) : "memory")

/* A gate counts arrivals of lanes and the bytes that they announced; its phase changes between 0 and 1 each
 * time when `lanes` have arrived and all bytes are there. From compute capability 9.0 on one lane copies
 * a span, 16 bytes or a multiple of that, and the gate learns of it. */
typedef u64 Gate;
FN u32 local_address_(const void *p) { return (u32)__cvta_generic_to_shared(p); }
FN void gate_open_(Gate *gate, int lanes) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(local_address_(gate)), "r"(lanes) : "memory");
}
FN void gate_arrive_(Gate *gate) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n }" ::"r"(local_address_(gate)) : "memory");
}
#define GATE_OPEN(gate, lanes) gate_open_((gate), (lanes))
#define GATE_ARRIVE(gate) gate_arrive_(gate)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GATES_READY() asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory")
FN void gate_announce_(Gate *gate, int nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(local_address_(gate)), "r"(nbytes)
               : "memory");
}
/* What is copied is much, and read once: it is the first to leave the L2 cache, where the small things that all
 * kernels read (norms, biases, caches, code) would not stay from one step to the next otherwise. */
FN void copy_span_(u8 *to, const u8 *from, int nbytes, Gate *gate) {
  asm volatile(
      "{\n"
      ".reg .b64 once;\n"
      "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], once;\n"
      " }" ::"r"(local_address_(to)),
      "l"(from), "r"(nbytes), "r"(local_address_(gate))
      : "memory");
}
FN void gate_await_(Gate *gate, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred open;\n"
      "CLOSED%=:\n"
      "mbarrier.try_wait.parity.shared.b64 open, [%0], %1;\n"
      "@!open bra CLOSED%=;\n"
      " }" ::"r"(local_address_(gate)), "r"(phase)
      : "memory");
}
#define GATE_ANNOUNCE(gate, nbytes) gate_announce_((gate), (nbytes))
#define COPY_SPAN(to, from, nbytes, gate) copy_span_((to), (from), (nbytes), (gate))
#define GATE_AWAIT(gate, phase) gate_await_((gate), (phase))
#endif

/* The first `lanes` lanes of a group meet. */
#define MEET(lanes) asm volatile("bar.sync 1, %0;" ::"r"(lanes) : "memory")

#define PERMUTED(a, b, selector) __byte_perm((a), (b), (selector))
/* The same, but where bit 3 of a part of the selector is set, its byte is the sign of the one that it names,
 * eight times. (The function for permutations looks at three bits of each part.) */
FN u32 permuted_or_sign_(u32 a, u32 b, u32 selector) {
  u32 bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}
#define PERMUTED_OR_SIGN(a, b, selector) permuted_or_sign_((a), (b), (selector))
#define FUNNEL(low, high, shift) __funnelshift_r((low), (high), (shift))
#define FUNNEL_TO_32(low, high, shift) __funnelshift_rc((low), (high), (shift)) /* for shifts by 32 as well */
/* sum += a b for a of 16 rows and b of 8 columns of 32 signed bytes. Lane 4 g + t has of a the bytes from
 * 4 t of row g, of row g + 8, and from 16 + 4 t of both; of b those bytes of column g; of the sum columns
 * 2 t and 2 t + 1 of row g, and of row g + 8. */
FN void multiply_add_(int *sum, const u32 *a, const u32 *b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define MULTIPLY_WORDS 1
#define MULTIPLY_ADD(sum, a, b, scratch) multiply_add_((sum), (a), (b))
