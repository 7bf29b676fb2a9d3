/* Kernels of the plug-in cuda itself; without a prologue. */
typedef long long i64;

/* Copies the three fault words of a stream, so that an event knows how things stood there. */
extern "C" __global__ void snapshot(const volatile int *from, int *to) {
  if (threadIdx.x < 3) to[threadIdx.x] = from[threadIdx.x];
}

/* Holds a stream until a word in host memory is not zero, at most for `ns` nanoseconds. */
extern "C" __global__ void hold(const volatile int *word, i64 ns) {
  i64 start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    if (*word) return;
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

/* Transfers between pinned host memory and the GPU, one for each row of blocks. */
struct Moves {
  i64 m[8][3]; /* to, from, bytes */
};
extern "C" __global__ void move(Moves moves) {
  const i64 *m = moves.m[blockIdx.y];
  char *to = (char *)m[0];
  const char *from = (const char *)m[1];
  i64 n = m[2], step = (i64)gridDim.x * blockDim.x, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  i64 wide = ((m[0] | m[1]) & 15) == 0 ? n / 16 : 0;
  for (i64 i = at; i < wide; i += step) ((int4 *)to)[i] = ((const int4 *)from)[i];
  for (i64 i = 16 * wide + at; i < n; i += step) to[i] = from[i];
}
