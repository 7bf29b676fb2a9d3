/* conv_tiles of array_conv.cl on tensor cores: factors are rounded to TF32, or with W_BF16 to bf16, and sums are f32. Behind its text
 * and mma.h.
 *
 * A thread block of ALONG x ACROSS warps computes a tile of BM rows of w and BN columns, BK elements of the sum at a time. A warp
 * has MT tiles of 16 rows and NT of 8 columns. Lanes load the next step, 64 bytes of each row and column once they are rounded,
 * into registers while they multiply one, and then store it to the other half of shared memory. A piece of 16 bytes there is what a
 * lane has of rows g and g + 8 for one product, or of a column for two: words 2 t and 2 t + 1 of 8, which stand for t and t + 4 in both
 * factors. Lanes that store or read at once hit different banks.
 *
 * Rows and columns behind the last one are those of the last one, and their results are not stored. Loads do not depend on
 * branches, so a lane has all of a step under way. EVEN: the sum has whole steps.
 *
 * TAPS: the elements of a window, if a lane can keep in a word which of them are inside x; taps then has for each element of the sum
 * its distance and number, up to a whole step of 32 with a number whose bit is 0, and behind these the places of the elements. 0: taps
 * is as for conv_tiles. Windows of one element inside x need no table. */
#define BM (ALONG * MT * 16)
#define BN (ACROSS * NT * 8)
#ifdef W_BF16
#define PIECE 8 /* elements of 16 bytes, of 4 words */
#define OF_WORD 2
typedef float4 Vector;
#define MULTIPLY MULTIPLY_HALVES
#else
#define PIECE 4
#define OF_WORD 1
typedef float2 Vector;
#define MULTIPLY MULTIPLY_TF32
#endif
#define BK (4 * PIECE)
#define IS_TERM(k) (EVEN || (k) < t.depth)
#define W_PIECES (4 * BM / LANES) /* of a lane */
#define X_PIECES (4 * BN / LANES)
#define HALF (PIECE / 2)
#define K_OF(e) (first + (e) / HALF * (BK / 2) + (e) % HALF)
#define W_ROW(at) ((at) / 64 * 16 + (at) / 8 % 8)
#define W_PIECE_AT(tile, pair, piece) (64 * (tile) + 8 * (pair) + ((piece) ^ ((pair) & 1) * 4))
#define PIECE_AT(row, piece) (4 * (row) + ((piece) ^ ((row) >> 1 & 3)))

FN u4 rounded(const float *v) {
#ifdef W_BF16
  return make_uint4(PAIR_OF(v[0], v[1]), PAIR_OF(v[2], v[3]), PAIR_OF(v[4], v[5]), PAIR_OF(v[6], v[7]));
#else
  return make_uint4(TF32_OF(v[0]), TF32_OF(v[1]), TF32_OF(v[2]), TF32_OF(v[3]));
#endif
}

FN int is_inside(const Conv t, const Corner c, int tap) {
  int z = c.z + (tap >> 20), y = c.y + (tap >> 10 & 1023), x = c.x + (tap & 1023);
  return (u32)z < (u32)t.in[0] && (u32)y < (u32)t.in[1] && (u32)x < (u32)t.in[2];
}

#undef KERNEL_BOUNDS
#define KERNEL_BOUNDS __launch_bounds__(LANES, RESIDENT)
KERNEL(conv_mma)(GLOBAL const u8 *x, GLOBAL const u8 *w, GLOBAL const u8 *bias, GLOBAL u8 *y, Conv t, GLOBAL const i32 *taps,
                 GLOBAL u8 *parts, EPILOGUE_ARGS) {
  LOCAL u4 wt[2][4 * BM];
  LOCAL u4 xt[2][4 * BN];
  int group = GROUP(2) % t.groups, share = GROUP(2) / t.groups, m0 = GROUP(1) * BM, n0 = GROUP(0) * BN;
  int from = share * t.stretch, to = MIN(t.depth, from + t.stretch);
  EPILOGUE_PLACES
  GLOBAL const float *factor = (GLOBAL const float *)(w + t.off[1]) + (i64)(group * t.rows + m0) * t.depth;
  int column = LANE % BN;
  Corner c = corner_of(t, MIN(n0 + column, t.columns - 1), group);
  GLOBAL const float *corner = (GLOBAL const float *)(x + t.off[0]) + c.base;
#if INSIDE
  int plane = t.in[0] * t.in[1] * t.in[2];
#elif TAPS
  u32 inside = 0;
  for (int i = 0; i < TAPS; i++) inside |= (u32)is_inside(t, c, taps[(t.depth + 31) / 32 * 64 + i]) << i;
#endif
  float next_w[W_PIECES][PIECE], next_x[X_PIECES][PIECE], sum[MT][NT][4];
  UNROLL for (int i = 0; i < MT * NT * 4; i++) sum[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
  int g = LANE % 32 / 4, word = LANE % 4;
  int w_tile = LANE / 32 % ALONG * MT, w_row = w_tile * 16 + g, x_row = LANE / 32 / ALONG * NT * 8 + g;
  for (int k0 = from - BK, half = 1; k0 < to; k0 += BK, half ^= 1) {
    int k1 = k0 + BK; /* the step that is loaded */
    if (k1 < to) {
      UNROLL for (int i = 0; i < W_PIECES * 2; i++) {
        int at = LANE + i / 2 * LANES, row = W_ROW(at) + i % 2 * 8, k = k1 + at % 8 * HALF;
        GLOBAL const float *source = factor + (i64)MIN(row, t.rows - 1 - m0) * t.depth + k;
        float v[HALF];
#if VEC_W
        Vector all = {};
        if (IS_TERM(k)) all = *(GLOBAL const Vector *)source;
        v[0] = all.x, v[1] = all.y;
#if HALF == 4
        v[2] = all.z, v[3] = all.w;
#endif
#else
        UNROLL for (int e = 0; e < HALF; e++) v[e] = IS_TERM(k + e) ? source[e] : 0.0f;
#endif
        UNROLL for (int e = 0; e < HALF; e++) next_w[i / 2][(2 * (e / OF_WORD) + i % 2) * OF_WORD + e % OF_WORD] = v[e];
      }
      UNROLL for (int i = 0; i < X_PIECES; i++) {
        int first = k1 + (LANE + i * LANES) / BN * HALF; /* and as many elements half a step further */
#if INSIDE && TAPS == 1
        UNROLL for (int e = 0; e < PIECE; e++) next_x[i][e] = IS_TERM(K_OF(e)) ? corner[K_OF(e) * plane] : 0.0f;
#else
        u4 pairs[PIECE / 2]; /* of entries */
        UNROLL for (int e = 0; e < PIECE / 2; e++) pairs[e] = LOAD16(taps + 2 * K_OF(2 * e));
        UNROLL for (int e = 0; e < PIECE; e++) {
          i32 delta = (i32)(e % 2 ? pairs[e / 2].z : pairs[e / 2].x), tap = (i32)(e % 2 ? pairs[e / 2].w : pairs[e / 2].y);
#if INSIDE
          next_x[i][e] = IS_TERM(K_OF(e)) ? corner[delta] : 0.0f;
#elif TAPS
          next_x[i][e] = inside >> tap & 1 ? corner[delta] : 0.0f;
#else
          next_x[i][e] = IS_TERM(K_OF(e)) && is_inside(t, c, tap) ? corner[delta] : 0.0f;
#endif
        }
#endif
      }
    }
    if (k0 >= from) {
      u4 b[NT];
      UNROLL for (int n = 0; n < NT; n++) b[n] = xt[half][PIECE_AT(x_row + 8 * n, word)];
      UNROLL for (int m = 0; m < MT; m++) {
        u4 a[2] = {wt[half][W_PIECE_AT(w_tile + m, g, word)], wt[half][W_PIECE_AT(w_tile + m, g, word + 4)]};
        UNROLL for (int n = 0; n < 2 * NT; n++) {
          u32 whole[4] = {a[n % 2].x, a[n % 2].y, a[n % 2].z, a[n % 2].w};
          u32 column[2] = {n % 2 ? b[n / 2].z : b[n / 2].x, n % 2 ? b[n / 2].w : b[n / 2].y};
          MULTIPLY(sum[m][n / 2], whole, column);
        }
      }
    }
    if (k1 < to) {
      UNROLL for (int i = 0; i < W_PIECES; i++) {
        int at = LANE + i * LANES;
        wt[half ^ 1][W_PIECE_AT(at / 64, at / 8 % 8, at % 8)] = rounded(next_w[i]);
      }
      UNROLL for (int i = 0; i < X_PIECES; i++)
        xt[half ^ 1][PIECE_AT(column, (LANE + i * LANES) / BN)] = rounded(next_x[i]);
      BARRIER();
    }
  }
#if SPLIT
  GLOBAL u8 *made = parts + t.off[4] + share * t.made * 4;
#undef BODY
#define BODY
#else
  GLOBAL u8 *made = y + t.off[3];
#endif
  float added[2 * MT];
  UNROLL for (int r = 0; r < 2 * MT; r++) {
    int row = m0 + w_row + 8 * r;
    added[r] = !SPLIT && row < t.rows ? BIAS(group * t.rows + row) : 0.0f;
  }
  UNROLL for (int n = 0; n < NT; n++) {
    int first = n0 + x_row - g + 8 * n + 2 * word;
    i64 begin[2]; /* elements of y in front of channel 0 */
    UNROLL for (int e = 0; e < 2; e++) begin[e] = (i64)((first + e) / t.at) * t.m * t.at + (first + e) % t.at;
    UNROLL for (int r = 0; r < 2 * MT; r++) {
      int row = m0 + w_row + 8 * r;
      if (row >= t.rows) continue;
      i64 channel = (i64)(group * t.rows + row) * t.at;
      float each[2];
      UNROLL for (int e = 0; e < 2; e++) {
        i64 i = begin[e] + channel;
        if (first + e >= t.columns) continue;
        float V = sum[r / 2][n][r % 2 * 2 + e] + added[r];
        BODY;
        each[e] = V;
        if (!VEC_Y) PLAIN_AT(float, made + i * 4) = V;
      }
      if (VEC_Y && first < t.columns) PLAIN_AT(float2, made + (begin[0] + channel) * 4) = make_float2(each[0], each[1]);
    }
  }
}
