/* y[m, n] = sum_k x[m, k] w[n, k] for many rows m, on units that multiply matrices of 16-bit numbers: for bf16 weights in
 * bf16, for others in f16.
 *
 * Rows of x are prepared by halve_rows: for f16 the 32 elements of a piece times a power of two that brings the largest to
 * [2^14, 2^15), with a unit that undoes it. Packed weights are multiplied as signed bytes (blocks.h), which f16 has; the
 * scales of a piece multiply its product, and what is added to its elements (HAS_MIN) the sum of those of x.
 *
 * A group computes BM rows of x against BN of w. Stages hold a piece of each; copies of STAGES - 1 pieces are under way.
 * Packed weights come by way of registers, one piece ahead. Warps are 2 along m and 4 along n; each has MT x NT tiles
 * of 16 x 8. Lane 4 g + t multiplies chunk t of rows g and g + 8 of x with that of row g of w. A chunk has 8 elements, the
 * same in both, so their order does not matter. Rows of 64 bytes lie without gaps: eight lanes that read 16 bytes each take
 * two rows, all banks once.
 *
 * The rows of x and y are listed in local arrays, so that the same code serves mul_mat_id by the route of list_rows.
 */
#define BM (32 * MT)
#define BN (32 * NT)
#define PACKED (!W_NBYTES)
#if defined(W_BF16)
#define SCALED 0
#else
#define SCALED 1
#endif
#if !PACKED
#define PARTS 1
#define HAS_MIN 0
#endif
#if HAS_MIN
#define BLOCK_MIN(block, s) block_min(block, s)
#else
#define BLOCK_MIN(block, s) 0.0f
#endif
#define X_FLOATS (SCALED + 2 * PACKED) /* of a piece of a row of x: its unit, the sums of its halves */

/* Exponent of the largest number of a piece, as it is scaled. */
FN u32 exponent_of(u32 top) { return MAX(15u, MIN(253u, top >> 23)); }

/* Two floats as a word of two numbers. */
FN u32 pair_of(float low, float high) {
#if SCALED
  return HALF_PAIR(low, high);
#else
  u32 a = BITS_OF_FLOAT(low), b = BITS_OF_FLOAT(high);
  a = (a & 0x7fffffffu) > 0x7f800000u ? a | 0x400000u : a + 0x7fffu + (a >> 16 & 1u);
  b = (b & 0x7fffffffu) > 0x7f800000u ? b | 0x400000u : b + 0x7fffu + (b >> 16 & 1u);
  return a >> 16 | (b & 0xffff0000u);
#endif
}

/* Rows of x, `pitch` bytes apart with zeros behind the last element, and at `floats` X_FLOATS for each piece. A lane has a
 * chunk. Groups: (chunks / LANES). */
KERNEL(halve_rows)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *to, i64 floats, int pitch) {
  LOCAL float scratch[LANES];
  int pieces = pitch / 64, rows = tx.n[0] * tx.n[1] * tx.n[2], i = GROUP(0) * LANES + LANE, t = i % 4;
  int row = MIN(i / 4 / pieces, rows - 1), k0 = i / 4 % pieces * 32, exists = i / 4 / pieces < rows;
  GLOBAL const float *from = (GLOBAL const float *)(x + row_offset(tx, row));
  float v[8], up = 1.0f;
  u32 top = 0u;
  UNROLL for (int j = 0; j < 8; j++) {
#if PACKED
    int k = k0 + OF_BYTE(j) % 4 + t * 4 + OF_BYTE(j) / 4 * 16;
#else
    int k = k0 + t * 8 + j;
#endif
    v[j] = k < tx.n[3] ? from[k] : 0.0f;
    top = MAX(top, BITS_OF_FLOAT(v[j]) & 0x7fffffffu);
  }
#if SCALED
  for (int mask = 1; mask < 4; mask *= 2) {
    u32 other = BITS_OF_FLOAT(EXCHANGED(FLOAT_OF_BITS(top), mask, scratch));
    top = MAX(top, other);
  }
  GLOBAL float *out = (GLOBAL float *)(to + floats) + (i64)(i / 4) * X_FLOATS;
  up = FLOAT_OF_BITS((268u - exponent_of(top)) << 23);
  if (exists && t == 0) out[0] = FLOAT_OF_BITS((exponent_of(top) - 14u) << 23);
#endif
#if PACKED
  float low = 0.0f, high = 0.0f;
  UNROLL for (int j = 0; j < 8; j++) {
    low += OF_BYTE(j) < 4 ? v[j] : 0.0f;
    high += OF_BYTE(j) < 4 ? 0.0f : v[j];
  }
  for (int mask = 1; mask < 4; mask *= 2) {
    low += EXCHANGED(low, mask, scratch);
    high += EXCHANGED(high, mask, scratch);
  }
  if (exists && t == 0) out[1] = low, out[2] = high;
#endif
  u4 all;
  all.x = pair_of(v[0] * up, v[1] * up), all.y = pair_of(v[2] * up, v[3] * up);
  all.z = pair_of(v[4] * up, v[5] * up), all.w = pair_of(v[6] * up, v[7] * up);
  if (exists) *(GLOBAL u4 *)(to + (i64)row * pitch + k0 * 2 + t * 16) = all;
}

#define X_EACH (BM * 4 / LANES) /* chunks of a piece of all rows, for a lane */
#define W_EACH (BN * 4 / LANES)
#define STAGE ((BM + BN) * 4)   /* chunks of a stage */
#define FLOATS (BM * X_FLOATS + BN * PARTS * (1 + HAS_MIN))

typedef struct {
  GLOBAL const u8 *w; /* row 0 */
  i64 sn, sk;
  GLOBAL const u8 *x;
  i64 floats;
  int pitch, count, columns, nk;
} Rows;

/* Begin to copy piece `p` of x, and of w if that is copied as it lies. */
FN void copy_piece(LOCAL_PTR u4 *stage, LOCAL_PTR float *floats, const Rows a, LOCAL_PTR const i32 *xr, int p) {
  UNROLL for (int i = 0; i < X_EACH; i++) {
    int at = i * LANES + LANE;
    i64 row = xr[MIN(at / 4, a.count - 1)];
    COPY16(stage + at, a.x + row * a.pitch + p * 64 + at % 4 * 16);
    GLOBAL const float *from = (GLOBAL const float *)(a.x + a.floats) + (row * (a.pitch / 64) + p) * X_FLOATS;
    if (at % 4 < SCALED + 2 * HAS_MIN) COPY4(floats + at / 4 * X_FLOATS + at % 4, from + at % 4);
  }
#if !PACKED
  u4 none;
  none.x = none.y = none.z = none.w = 0u;
  UNROLL for (int i = 0; i < W_EACH; i++) {
    int at = i * LANES + LANE, k = p * 32 + at % 4 * 8;
    GLOBAL const u8 *row = a.w + MIN(at / 4, a.columns - 1) * a.sn;
#if W_ALIGNED
    if (k < a.nk)
      COPY16(stage + BM * 4 + at, row + k * 2);
    else
      stage[BM * 4 + at] = none;
#else
    LOCAL_PTR u16 *to = (LOCAL_PTR u16 *)(stage + BM * 4 + at);
    for (int j = 0; j < 8; j++) to[j] = k + j < a.nk ? *(GLOBAL const u16 *)(row + (k + j) * a.sk) : 0;
#endif
  }
#endif
}

FN void block_product(const Rows a, LOCAL_PTR const i32 *xr, GLOBAL u8 *y, LOCAL_PTR const i64 *yo, LOCAL_PTR u4 *stages,
                      LOCAL_PTR float *stage_floats, LOCAL_PTR u32 *scratch) {
  int g = WARP_LANE / 4, t = WARP_LANE % 4, m0 = WARP_INDEX / 4 * 16 * MT, n0 = WARP_INDEX % 4 * 8 * NT;
  int pieces = (a.nk + 31) / 32;
  float sum[MT * NT * 4];
  UNROLL for (int i = 0; i < MT * NT * 4; i++) sum[i] = 0.0f;
#if PACKED
  u32 words[W_EACH * 2];
  float scales[W_EACH * PARTS], mins[W_EACH * PARTS];
#define LOAD_WEIGHTS(p)                                                                              \
  UNROLL for (int i = 0; i < W_EACH; i++) {                                                          \
    int at = i * LANES + LANE;                                                                       \
    GLOBAL const u8 *block = a.w + MIN(at / 4, a.columns - 1) * a.sn + (i64)((p) / PER_BLOCK) * BLOCK_NBYTES; \
    unpack_words(words + 2 * i, words + 2 * i + 1, block, 0, (p) % PER_BLOCK, at % 4);               \
    UNROLL for (int j = 0; j < PARTS; j++) {                                                         \
      scales[i * PARTS + j] = block_scale(block, (p) % PER_BLOCK * PARTS + j);                       \
      mins[i * PARTS + j] = BLOCK_MIN(block, (p) % PER_BLOCK * PARTS + j);                           \
    }                                                                                                \
  }
#define STORE_WEIGHTS(p)                                                                             \
  UNROLL for (int i = 0; i < W_EACH; i++) {                                                          \
    int at = i * LANES + LANE;                                                                       \
    u32 pairs[4];                                                                                    \
    u4 all;                                                                                          \
    BYTE_PAIRS(pairs, words[2 * i]);                                                                 \
    BYTE_PAIRS(pairs + 2, words[2 * i + 1]);                                                         \
    all.x = pairs[0], all.y = pairs[1], all.z = pairs[2], all.w = pairs[3];                          \
    stages[(p) % STAGES * STAGE + BM * 4 + at] = all;                                                \
    LOCAL_PTR float *to = stage_floats + (p) % STAGES * FLOATS + BM * X_FLOATS + at / 4 * PARTS * (1 + HAS_MIN); \
    UNROLL for (int j = 0; j < PARTS; j++) {                                                         \
      if (at % 4 == 0) to[j] = scales[i * PARTS + j];                                                \
      if (HAS_MIN && at % 4 == 1) to[PARTS + j] = mins[i * PARTS + j];                               \
    }                                                                                                \
  }
#else
#define LOAD_WEIGHTS(p)
#define STORE_WEIGHTS(p)
#endif
  if (pieces > 0) {
    LOAD_WEIGHTS(0)
    STORE_WEIGHTS(0)
  }
  for (int p = 0; p < STAGES - 1; p++) {
    if (p < pieces) copy_piece(stages + p * STAGE, stage_floats + p * FLOATS, a, xr, p);
    COPIES_CLOSE();
  }
  for (int p = 0; p < pieces; p++) {
    COPIES_AWAIT(STAGES - 2);
    BARRIER(); /* piece p is there, and nobody reads the stage that is filled next */
    int ahead = p + STAGES - 1, next = MIN(p + 1, pieces - 1);
    if (ahead < pieces)
      copy_piece(stages + ahead % STAGES * STAGE, stage_floats + ahead % STAGES * FLOATS, a, xr, ahead);
    COPIES_CLOSE();
    LOAD_WEIGHTS(next)
    LOCAL_PTR const u4 *xt = stages + p % STAGES * STAGE + m0 * 4, *wt = stages + p % STAGES * STAGE + (BM + n0) * 4;
    LOCAL_PTR const float *xf = stage_floats + p % STAGES * FLOATS + m0 * X_FLOATS;
    LOCAL_PTR const float *wf = stage_floats + p % STAGES * FLOATS + BM * X_FLOATS + n0 * PARTS * (1 + HAS_MIN);
    u4 b[NT];
    UNROLL for (int j = 0; j < NT; j++) b[j] = wt[(j * 8 + g) * 4 + t];
    UNROLL_MEETING for (int i = 0; i < MT; i++) {
      u4 low = xt[(i * 16 + g) * 4 + t], high = xt[(i * 16 + g + 8) * 4 + t];
      u32 a0[4], a1[4];
      a0[0] = low.x, a0[1] = high.x, a0[2] = low.y, a0[3] = high.y;
      a1[0] = low.z, a1[1] = high.z, a1[2] = low.w, a1[3] = high.w;
      UNROLL_MEETING for (int j = 0; j < NT; j++) {
        u32 b0[2], b1[2];
        b0[0] = b[j].x, b0[1] = b[j].y, b1[0] = b[j].z, b1[1] = b[j].w;
        float *to = sum + (i * NT + j) * 4;
#if !SCALED
        MULTIPLY_HALVES(to, a0, b0, scratch);
        MULTIPLY_HALVES(to, a1, b1, scratch);
#else
        float own[2 * 4]; /* of the first and the second half of the piece, where these have scales of their own */
        UNROLL for (int v = 0; v < 8; v++) own[v] = 0.0f;
        MULTIPLY_HALVES(own, a0, b0, scratch);
        MULTIPLY_HALVES(own + (PARTS - 1) * 4, a1, b1, scratch);
        UNROLL for (int v = 0; v < 4; v++) {
          LOCAL_PTR const float *of_x = xf + (i * 16 + g + v / 2 * 8) * X_FLOATS;
#if PACKED
          LOCAL_PTR const float *of_w = wf + (j * 8 + 2 * t + v % 2) * PARTS * (1 + HAS_MIN);
          UNROLL for (int part = 0; part < PARTS; part++) {
            to[v] += own[part * 4 + v] * (of_x[0] * of_w[part]);
#if HAS_MIN
            to[v] += of_w[PARTS + part] * (PARTS == 1 ? of_x[1] + of_x[2] : of_x[1 + part]);
#endif
          }
#else
          to[v] += own[v] * of_x[0];
#endif
        }
#endif
      }
    }
    STORE_WEIGHTS(next)
  }
  COPIES_AWAIT(0);
  UNROLL for (int i = 0; i < MT * NT * 4; i++) {
    int m = m0 + i / 4 / NT * 16 + g + i / 2 % 2 * 8, n = n0 + i / 4 % NT * 8 + 2 * t + i % 2;
    if (m < a.count && n < a.columns) ((GLOBAL float *)(y + yo[m]))[n] = sum[i];
  }
}

#define LOCALS                                   \
  LOCAL u4 stages[STAGES * STAGE];               \
  LOCAL float stage_floats[STAGES * FLOATS + 1]; \
  LOCAL u32 scratch[HALVES_WORDS * LANES];     \
  LOCAL i32 xr[BM];                              \
  LOCAL i64 yo[BM]

/* w (1, 1, n, k), y of any rows. Groups: (n / BN, m / BM). */
KERNEL(matmul_halves)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, i64 floats, int pitch, GLOBAL u8 *y, Tens ty) {
  LOCALS;
  int n0 = GROUP(0) * BN, m0 = GROUP(1) * BM;
  Rows a;
  a.w = w + tw.off + n0 * tw.s[2], a.sn = tw.s[2], a.sk = tw.s[3], a.x = x, a.floats = floats, a.pitch = pitch;
  a.count = MIN(BM, ty.n[0] * ty.n[1] * ty.n[2] - m0), a.columns = MIN(BN, tw.n[2] - n0), a.nk = tw.n[3];
  for (int i = LANE; i < a.count; i += LANES) xr[i] = m0 + i, yo[i] = row_offset(ty, m0 + i) + (i64)n0 * 4;
  BARRIER();
  block_product(a, xr, y, yo, stages, stage_floats, scratch);
}

/* w (1, E, n, k), y (1, T, U, n), x of T * own rows. Groups: (n / BN, TILES_MAX of matmul.cl); those of tiles without rows
 * do nothing. */
KERNEL(matmul_halves_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, i64 floats, int pitch, int own, GLOBAL u8 *y,
                         Tens ty, GLOBAL const i32 *route) {
  LOCALS;
  int experts = tw.n[1], used = ty.n[2], n0 = GROUP(0) * BN;
  GLOBAL const i32 *mine = route + 3 * GROUP(1);
  GLOBAL const i32 *rows = route + 3 * (experts + 1 + ty.n[1] * used / BM);
  int expert = mine[0], begin = mine[1], is_done = expert == experts || mine[2] == 0;
  Rows a;
  a.w = w + tw.off + (is_done ? 0 : expert) * tw.s[1] + n0 * tw.s[2];
  a.sn = tw.s[2], a.sk = tw.s[3], a.x = x, a.floats = floats, a.pitch = pitch;
  a.count = mine[2], a.columns = MIN(BN, tw.n[2] - n0), a.nk = is_done ? 0 : tw.n[3];
  for (int i = LANE; i < a.count; i += LANES) {
    int token = rows[begin + i] / used, u = rows[begin + i] % used;
    xr[i] = token * own + (own > 1 ? u : 0);
    yo[i] = ty.off + token * ty.s[1] + u * ty.s[2] + (i64)n0 * 4;
  }
  BARRIER();
  block_product(a, xr, y, yo, stages, stage_floats, scratch); /* zeros for ids out of range */
}
