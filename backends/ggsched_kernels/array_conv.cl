/* Convolutions of f32 on GPUs, up to three spatial axes, with ops on single elements behind them.
 *
 * conv_tiles is a product of matrices whose second factor, the windows of x, is never laid out: a
 * group computes a tile of BM rows of w (output channels) and BN columns (output positions of all
 * images), BK elements of the sum at a time. Each lane keeps 4 * MV rows and 4 columns in registers.
 * While it multiplies one step, it loads the next.
 *
 * The host defines LX (lanes along columns), MV, BK, INSIDE (no window leaves x), VEC_W and
 * VEC_Y (rows of w and of y can be read and written four at a time), SPLIT (several groups share
 * the sum of a tile, whose parts conv_sums adds up), BODY (the ops behind, on V).
 */
typedef struct {
  i64 off[5];            /* bytes: x, w, bias, y, parts */
  i64 image, part, made; /* elements of x of an image and of a group of channels; of y */
  i32 m, rows;           /* channels of y; of a group of channels */
  i32 columns, at;       /* output positions of all images; of one */
  i32 depth, stretch;    /* elements of the sum; of them for each of those that share it */
  i32 groups, images;
  i32 in[3], out[3], s[3], p[3];
  i32 has_bias;
  i32 step[3]; /* bytes between elements of the operands of BODY: 4 or 0 */
} Conv;

/* What BODY reads; it sees the element of y as i. */
#define EPILOGUE_ARGS                                                                         \
  GLOBAL const u8 *px0, i64 ox0, GLOBAL const u8 *px1, i64 ox1, GLOBAL const u8 *px2, i64 ox2, \
      float Q0, float Q1, float Q2
#define EPILOGUE_PLACES px0 += ox0, px1 += ox1, px2 += ox2;
#define X0 READ_AT(float, px0 + i * t.step[0])
#define X1 READ_AT(float, px1 + i * t.step[1])
#define X2 READ_AT(float, px2 + i * t.step[2])
#define BIAS(channel) (t.has_bias ? READ_AT(float, bias + t.off[2] + (i64)(channel) * 4) : 0.0f)
#define STORE_RESULT(sum, channel, index)    \
  do {                                       \
    i64 i = (index);                         \
    float V = (sum) + BIAS(channel);         \
    BODY;                                    \
    PLAIN_AT(float, y + t.off[3] + i * 4) = V; \
  } while (0)

/* Where the window of an output position begins in x. */
typedef struct {
  i64 base; /* elements from the start of x; meaningless where the position is none */
  i32 z, y, x;
} Corner;

FN Corner corner_of(const Conv t, int column, int group) {
  Corner c;
  int n = column / t.at, p = column % t.at;
  c.x = p % t.out[2] * t.s[2] - t.p[2];
  p /= t.out[2];
  c.y = p % t.out[1] * t.s[1] - t.p[1];
  c.z = p / t.out[1] * t.s[0] - t.p[0];
  c.base = n * t.image + group * t.part + ((i64)c.z * t.in[1] + c.y) * t.in[2] + c.x;
  return c;
}

#ifdef LX
#define LY (LANES / LX)
#define BM (LY * 4 * MV)
#define BN (LX * 4)
#define PITCH (BM + 4) /* in f32: transposed stores of neighbours hit different banks */
#define W_LOADS ((BM * BK / 4 + LANES - 1) / LANES)
#define X_LOADS (BN * BK / LANES)

#define FMA4(sum, a, b)            \
  sum.x = FMA(a, b.x, sum.x);      \
  sum.y = FMA(a, b.y, sum.y);      \
  sum.z = FMA(a, b.z, sum.z);      \
  sum.w = FMA(a, b.w, sum.w)

/* Groups: (columns / BN, rows / BM, groups of channels * those that share a sum). taps: for each
 * element of the sum how far it is from the corner of the window, in elements of x, then along each
 * axis in 10 bits. */
KERNEL(conv_tiles)(GLOBAL const u8 *x, GLOBAL const u8 *w, GLOBAL const u8 *bias, GLOBAL u8 *y,
                   Conv t, GLOBAL const i32 *taps, GLOBAL u8 *parts, EPILOGUE_ARGS) {
  LOCAL f4 wt[BK * PITCH / 4];
  LOCAL f4 xt[BK * BN / 4];
  int group = GROUP(2) % t.groups, share = GROUP(2) / t.groups;
  int m0 = GROUP(1) * BM, n0 = GROUP(0) * BN;
  int from = share * t.stretch, to = MIN(t.depth, from + t.stretch);
  int lx = LANE % LX, ly = LANE / LX;
  EPILOGUE_PLACES
  GLOBAL const float *data = (GLOBAL const float *)(x + t.off[0]);
  GLOBAL const float *factor = (GLOBAL const float *)(w + t.off[1]) + (i64)group * t.rows * t.depth;
  int column = LANE % BN, k_first = LANE / BN, is_column = n0 + column < t.columns;
  Corner c = corner_of(t, is_column ? n0 + column : 0, group);
  f4 sum[4 * MV];
  f4 next_w[W_LOADS];
  float next_x[X_LOADS];
  UNROLL for (int i = 0; i < 4 * MV; i++) sum[i].x = sum[i].y = sum[i].z = sum[i].w = 0.0f;
  for (int k0 = from - BK; k0 < to; k0 += BK) {
    int k1 = k0 + BK; /* the step that is loaded */
    if (k1 < to) {
      UNROLL for (int i = 0; i < W_LOADS; i++) {
        int at = LANE + i * LANES, row = at / (BK / 4), k = k1 + at % (BK / 4) * 4;
        f4 v;
        v.x = v.y = v.z = v.w = 0.0f;
        if (row < BM && m0 + row < t.rows) {
          GLOBAL const float *source = factor + (i64)(m0 + row) * t.depth + k;
#if VEC_W
          if (k < to) v = *(GLOBAL const f4 *)source;
#else
          if (k < to) v.x = source[0];
          if (k + 1 < to) v.y = source[1];
          if (k + 2 < to) v.z = source[2];
          if (k + 3 < to) v.w = source[3];
#endif
        }
        next_w[i] = v;
      }
      UNROLL for (int i = 0; i < X_LOADS; i++) {
        int k = k1 + k_first + i * (LANES / BN);
        float v = 0.0f;
        if (is_column && k < to) {
          int delta = taps[2 * k];
#if INSIDE
          v = data[c.base + delta];
#else
          int tap = taps[2 * k + 1];
          int iz = c.z + (tap >> 20), iy = c.y + (tap >> 10 & 1023), ix = c.x + (tap & 1023);
          if ((u32)iz < (u32)t.in[0] && (u32)iy < (u32)t.in[1] && (u32)ix < (u32)t.in[2])
            v = data[c.base + delta];
#endif
        }
        next_x[i] = v;
      }
    }
    if (k0 >= from) {
      UNROLL for (int k = 0; k < BK; k++) {
        f4 b = xt[k * (BN / 4) + lx];
        UNROLL for (int i = 0; i < MV; i++) {
          f4 a = wt[k * (PITCH / 4) + ly + i * LY];
          FMA4(sum[4 * i], a.x, b);
          FMA4(sum[4 * i + 1], a.y, b);
          FMA4(sum[4 * i + 2], a.z, b);
          FMA4(sum[4 * i + 3], a.w, b);
        }
      }
      BARRIER();
    }
    if (k1 < to) {
      UNROLL for (int i = 0; i < W_LOADS; i++) {
        int at = LANE + i * LANES, row = at / (BK / 4), k = at % (BK / 4) * 4;
        if (row >= BM) continue;
        LOCAL_PTR float *tile = (LOCAL_PTR float *)wt + k * PITCH + row;
        tile[0] = next_w[i].x, tile[PITCH] = next_w[i].y;
        tile[2 * PITCH] = next_w[i].z, tile[3 * PITCH] = next_w[i].w;
      }
      UNROLL for (int i = 0; i < X_LOADS; i++)
        ((LOCAL_PTR float *)xt)[(k_first + i * (LANES / BN)) * BN + column] = next_x[i];
      BARRIER();
    }
  }
  int first = n0 + lx * 4;
  UNROLL for (int r = 0; r < 4 * MV; r++) {
    int row = m0 + (ly + r / 4 * LY) * 4 + r % 4, channel = group * t.rows + row;
    if (row >= t.rows) continue;
    f4 four = sum[r];
    float each[4] = {four.x, four.y, four.z, four.w};
#if VEC_Y
    if (first >= t.columns) continue;
    i64 index = ((i64)(first / t.at) * t.m + channel) * t.at + first % t.at;
#if SPLIT
    *(GLOBAL f4 *)(parts + t.off[4] + (share * t.made + index) * 4) = four;
#else
    UNROLL for (int e = 0; e < 4; e++) {
      i64 i = index + e;
      float V = each[e] + BIAS(channel);
      BODY;
      each[e] = V;
    }
    four.x = each[0], four.y = each[1], four.z = each[2], four.w = each[3];
    *(GLOBAL f4 *)(y + t.off[3] + index * 4) = four;
#endif
#else
    UNROLL for (int e = 0; e < 4; e++) {
      int position = first + e;
      if (position >= t.columns) continue;
      i64 index = ((i64)(position / t.at) * t.m + channel) * t.at + position % t.at;
#if SPLIT
      PLAIN_AT(float, parts + t.off[4] + (share * t.made + index) * 4) = each[e];
#else
      STORE_RESULT(each[e], channel, index);
#endif
    }
#endif
  }
}
#else
/* Adds up the parts of conv_tiles. Groups: (elements of y / LANES). */
KERNEL(conv_sums)(GLOBAL const u8 *bias, GLOBAL u8 *y, Conv t, GLOBAL const u8 *parts, int shares,
                  EPILOGUE_ARGS) {
  i64 at = (i64)GROUP(0) * LANES + LANE;
  if (at >= t.made) return;
  EPILOGUE_PLACES
  float all = 0.0f;
  for (int i = 0; i < shares; i++) all += READ_AT(float, parts + t.off[4] + (i * t.made + at) * 4);
  STORE_RESULT(all, (int)(at / t.at % t.m), at);
}

/* Few channels for each result, as in depthwise convolutions: a lane makes one element of y.
 * Groups: (elements of y / LANES). k: extents of the window, then its dilations. */
typedef struct {
  i32 per, k[3], d[3];
} Taps;

KERNEL(conv_each)(GLOBAL const u8 *x, GLOBAL const u8 *w, GLOBAL const u8 *bias, GLOBAL u8 *y, Conv t,
                  Taps k, EPILOGUE_ARGS) {
  i64 at = (i64)GROUP(0) * LANES + LANE;
  if (at >= t.made) return;
  EPILOGUE_PLACES
  int p = (int)(at % t.at), rest = (int)(at / t.at), m = rest % t.m, n = rest / t.m;
  int ox = p % t.out[2] * t.s[2] - t.p[2], oy = p / t.out[2] % t.out[1] * t.s[1] - t.p[1];
  int oz = p / t.out[2] / t.out[1] * t.s[0] - t.p[0];
  GLOBAL const float *data = (GLOBAL const float *)(x + t.off[0]);
  GLOBAL const float *factor = (GLOBAL const float *)(w + t.off[1]) + (i64)m * t.depth;
  data += n * t.image + m / t.rows * t.part;
  float sum = 0.0f;
  for (int c = 0; c < k.per; c++)
    for (int kz = 0; kz < k.k[0]; kz++)
      for (int ky = 0; ky < k.k[1]; ky++) {
        int iz = oz + kz * k.d[0], iy = oy + ky * k.d[1];
        int is_inside = iz >= 0 && iz < t.in[0] && iy >= 0 && iy < t.in[1];
        GLOBAL const float *row = data + (((i64)c * t.in[0] + iz) * t.in[1] + iy) * t.in[2];
        for (int kx = 0; kx < k.k[2]; kx++) {
          int ix = ox + kx * k.d[2];
          float f = *factor++;
          if (is_inside && ix >= 0 && ix < t.in[2]) sum = FMA(f, row[ix], sum);
        }
      }
  STORE_RESULT(sum, m, at);
}
#endif
