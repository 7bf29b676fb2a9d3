/* y[m, n] = sum_k x[m, k] w[n, k] for few rows m of x where the rows n of w lie side by side, and those of k apart: the
 * values of attention, weighted and added up. On devices with warps; bound by reading w once.
 *
 * Lanes have ELEMS_PER_CHUNK neighbours along n each; SPAN lanes cover a stretch of n, and the teams of SPAN lanes of a
 * group take every TEAMS-th k, DEPTH of them at a time. Where there are too few groups for the device, the
 * sum is cut into parts, and a second kernel adds these up.
 *
 * The pieces of 16 bytes of w lie at multiples of 16 bytes; n fills whole pieces.
 */
#define TEAMS (LANES / SPAN)

/* Groups: (stretches of n, parts of k, (rows of x / COLS) * (batches / joined)). Part i goes to `sums`, axes
 * (parts, z, COLS, n), or, if there is but one, to y. */
KERNEL(matvec_sums)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int joined,
                       int tiles, int parts, int batches, GLOBAL u8 *scratch, i64 off) {
  LOCAL float results[TEAMS * COLS * SPAN * ELEMS_PER_CHUNK];
  int m0 = GROUP(2) % tiles * COLS, part = GROUP(1), lane = LANE % SPAN, team = LANE / SPAN;
  Product p = batch_product(w, tw, x, tx, y, ty, GROUP(2) / tiles, m0, joined);
  int n = (GROUP(0) * SPAN + lane) * ELEMS_PER_CHUNK, each = (p.nk + parts - 1) / parts;
  int from = part * each, to = MIN(from + each, p.nk);
  float sums[COLS * ELEMS_PER_CHUNK];
  UNROLL for (int i = 0; i < COLS * ELEMS_PER_CHUNK; i++) sums[i] = 0.0f;
  for (int k0 = from + team; k0 < to && n < p.rows; k0 += TEAMS * DEPTH) {
    u4 v[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; d++) {
      int k = MIN(k0 + d * TEAMS, to - 1);
      v[d] = LOAD16_ONCE(p.w + k * tw.s[3] + (i64)n * W_NBYTES);
    }
    UNROLL for (int d = 0; d < DEPTH; d++) {
      int k = k0 + d * TEAMS;
      if (k >= to) break;
      float weights[ELEMS_PER_CHUNK];
      unpack(weights, v[d]);
      UNROLL for (int c = 0; c < COLS; c++) {
        float xv = READ_F32(p.x + MIN(c, p.columns - 1) * p.sx + (i64)k * 4);
        UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++)
          sums[c * ELEMS_PER_CHUNK + j] += weights[j] * xv;
      }
    }
  }
  UNROLL for (int i = 0; i < COLS * ELEMS_PER_CHUNK; i++) results[(team * COLS * ELEMS_PER_CHUNK + i) * SPAN + lane] = sums[i];
  BARRIER();
  for (int i = LANE; i < COLS * ELEMS_PER_CHUNK * SPAN; i += LANES) {
    int at = i % SPAN, j = i / SPAN % ELEMS_PER_CHUNK, c = i / SPAN / ELEMS_PER_CHUNK;
    int column = (GROUP(0) * SPAN + at) * ELEMS_PER_CHUNK + j;
    float sum = 0.0f;
    for (int t = 0; t < TEAMS; t++) sum += results[t * COLS * ELEMS_PER_CHUNK * SPAN + i];
    if (column >= p.rows || c >= p.columns) continue;
    if (parts == 1) {
      F32_AT(p.y + c * p.sy_column + column * p.sy_row) = sum;
    } else {
      F32_AT(scratch + off + ((((i64)part * batches * tiles + GROUP(2)) * COLS + c) * p.rows + column) * 4) = sum;
    }
  }
}

/* Groups: (n / LANES, 1, (rows of x / COLS) * (batches / joined)). */
KERNEL(matvec_parts)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int joined,
                  int tiles, int parts, int batches, GLOBAL const u8 *scratch, i64 off) {
  int m0 = GROUP(2) % tiles * COLS, n = GROUP(0) * LANES + LANE;
  Product p = batch_product(w, tw, x, tx, y, ty, GROUP(2) / tiles, m0, joined);
  if (n >= p.rows) return;
  for (int c = 0; c < p.columns; c++) {
    float sum = 0.0f;
    for (int i = 0; i < parts; i++)
      sum += READ_F32(scratch + off + ((((i64)i * batches * tiles + GROUP(2)) * COLS + c) * p.rows + n) * 4);
    F32_AT(p.y + c * p.sy_column + n * p.sy_row) = sum;
  }
}
