/* How kernels of several GPUs wait for each other (``ggsched_cuda.rendezvous``). Each kernel sets a word in the memory of
 * each other GPU, up to PEERS of them, when all work before it is complete, and waits for its own words. If several
 * thread blocks wait for the same words, they count themselves, and the last one to arrive clears the words. */
#define SIGNAL(word) asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(word) : "memory")
#define POLL(seen, word) asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory")
#define ARRIVE(old, word) asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(word) : "memory")
#define NANOSECONDS(t) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t))
#define POLLS 256 /* between two looks at the clock */
#define PEERS 3

/* Wait until a word is set; return whether it was. After `patience` nanoseconds give up and write the fault words. */
FN int await_word_(const u32 *own, i64 patience, GLOBAL i32 *fault, int code) {
  u32 seen = 0;
  u64 start = 0, now = 0;
  NANOSECONDS(start);
  for (int polls = 1; true; polls++) {
    POLL(seen, own);
    if (seen) return 1;
    if (polls % POLLS) continue;
    NANOSECONDS(now);
    if (fault[0]) return 0; /* nobody waits again for one that did not come */
    if ((i64)(now - start) < patience) continue;
    fault[1] = (int)(patience / 1000000);
    fault[2] = -1;
    fault[0] = code;
    return 0;
  }
}
