/* Kernels of the plug-in cuda itself; without a prologue. */
typedef unsigned short u16;
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

/* Transfers between host memory that is pinned and the card, one for each row of blocks. */
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

__device__ inline u16 bf16_of(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 64);
  return (u16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

/* Writes rows of f32 as a sum of two bf16: what bf16 keeps of 24 bits in the first one, the next
 * eight bits in the second, which lies `half` elements behind. An infinity stays one.
 * Groups: (rows, parts of a row). */
extern "C" __global__ void split_bf16(const char *x, i64 x_off, i64 row_nbytes, char *to, i64 to_off,
                                      int k, i64 half) {
  const float *row = (const float *)(x + x_off + (i64)blockIdx.x * row_nbytes);
  u16 *out = (u16 *)(to + to_off) + (i64)blockIdx.x * k;
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < k; i += gridDim.y * blockDim.x) {
    float v = row[i];
    u16 high = bf16_of(v);
    float rest = v - __uint_as_float((unsigned)high << 16);
    out[i] = high;
    out[i + half] = isfinite(v) ? bf16_of(rest) : (u16)0;
  }
}
