/* Windows that slide over x (N, C, up to three spatial axes): convolution and pooling in f32.
 *
 * Where a group is one lane, on processors, groups are (N * M, out[0] * out[1], out[2] / ACROSS) and
 * the lane makes ACROSS neighbours of a row. On GPUs groups are (N * M, elements of a plane / LANES).
 */
typedef struct {
  i64 off[4]; /* x, w, bias, y */
  i32 c, m, per, each; /* channels of x and y; of x for each of y; of y in a group */
  i32 in[3], out[3], k[3], s[3], d[3], p[3];
  i32 real[3]; /* extents with the pads that count */
} Sliding;

#if LANES > 1
#define ACROSS 1
#define WINDOW_OF(z, v, first)                                    \
  int at_ = GROUP(1) * LANES + LANE, rest_ = at_ / t.out[2];      \
  int z = rest_ / t.out[1], v = rest_ % t.out[1];                 \
  int first = at_ % t.out[2];                                     \
  if (z >= t.out[0]) return;
#else
#define ACROSS 8
#define WINDOW_OF(z, v, first)                                    \
  int z = GROUP(1) / t.out[1], v = GROUP(1) % t.out[1];           \
  int first = GROUP(2) * ACROSS;
#endif

KERNEL(conv)(GLOBAL const u8 *x, GLOBAL const u8 *w, GLOBAL const u8 *bias, GLOBAL u8 *y, Sliding t,
             int has_bias) {
  int m = GROUP(0) % t.m, n = GROUP(0) / t.m, g = m / t.each;
  WINDOW_OF(z, v, first)
  GLOBAL const float *data = (GLOBAL const float *)(x + t.off[0]);
  GLOBAL const float *factor = (GLOBAL const float *)(w + t.off[1]);
  factor += (i64)m * t.per * t.k[0] * t.k[1] * t.k[2];
  data += ((i64)n * t.c + (i64)g * t.per) * t.in[0] * t.in[1] * t.in[2];
  float sum[ACROSS];
  float start = has_bias ? READ_AT(float, bias + t.off[2] + (i64)m * 4) : 0.0f;
  for (int i = 0; i < ACROSS; ++i) sum[i] = start;
  for (int c = 0; c < t.per; ++c)
    for (int kz = 0; kz < t.k[0]; ++kz) {
      int iz = z * t.s[0] - t.p[0] + kz * t.d[0];
      for (int ky = 0; ky < t.k[1]; ++ky) {
        int iy = v * t.s[1] - t.p[1] + ky * t.d[1];
        if (iz < 0 || iz >= t.in[0] || iy < 0 || iy >= t.in[1]) {
          factor += t.k[2];
          continue;
        }
        GLOBAL const float *row = data + (((i64)c * t.in[0] + iz) * t.in[1] + iy) * t.in[2];
        for (int kx = 0; kx < t.k[2]; ++kx) {
          float f = *factor++;
          int at = first * t.s[2] - t.p[2] + kx * t.d[2];
          if (t.s[2] == 1 && at >= 0 && at + ACROSS <= t.in[2]) {
            for (int i = 0; i < ACROSS; ++i) sum[i] += f * row[at + i];
          } else {
            for (int i = 0; i < ACROSS; ++i, at += t.s[2])
              if (at >= 0 && at < t.in[2]) sum[i] += f * row[at];
          }
        }
      }
    }
  GLOBAL float *made = (GLOBAL float *)(y + t.off[3]);
  made += ((((i64)n * t.m + m) * t.out[0] + z) * t.out[1] + v) * t.out[2];
  for (int i = first; i < MIN(first + ACROSS, t.out[2]); ++i) made[i] = sum[i - first];
}

/* IS_MAX: the largest; otherwise the mean of those that count. */
KERNEL(pool)(GLOBAL const u8 *x, GLOBAL u8 *y, Sliding t, int is_max, int counts_pads) {
  WINDOW_OF(z, v, first)
  GLOBAL const float *data = (GLOBAL const float *)(x + t.off[0]);
  data += (i64)GROUP(0) * t.in[0] * t.in[1] * t.in[2];
  GLOBAL float *made = (GLOBAL float *)(y + t.off[3]);
  made += (((i64)GROUP(0) * t.out[0] + z) * t.out[1] + v) * t.out[2];
  for (int o = first; o < MIN(first + ACROSS, t.out[2]); ++o) {
    float sum = is_max ? -INFINITY : 0.0f;
    int count = 0;
    for (int kz = 0; kz < t.k[0]; ++kz)
      for (int ky = 0; ky < t.k[1]; ++ky)
        for (int kx = 0; kx < t.k[2]; ++kx) {
          int iz = z * t.s[0] - t.p[0] + kz * t.d[0];
          int iy = v * t.s[1] - t.p[1] + ky * t.d[1];
          int ix = o * t.s[2] - t.p[2] + kx * t.d[2];
          int inside = iz >= 0 && iz < t.in[0] && iy >= 0 && iy < t.in[1] && ix >= 0 && ix < t.in[2];
          int real = iz < t.real[0] && iy < t.real[1] && ix < t.real[2];
          count += counts_pads ? real : inside;
          if (!inside) continue;
          float a = data[((i64)iz * t.in[1] + iy) * t.in[2] + ix];
          sum = is_max ? NAN_MAX(sum, a) : sum + a;
        }
    made[o] = is_max ? sum : sum / (float)count;
  }
}
