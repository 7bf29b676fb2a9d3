/* y[m, n] = sum_k x[m, k] w[n, k] for few rows m of x and a weight that is not stored in blocks, on devices with
 * warps: bound by reading w once.
 *
 * SPAN neighbouring lanes share a row of w, or SPLIT such teams do; a team takes ROWS rows at a time and of
 * each VECTORS pieces of 16 bytes for each lane, all of them loaded before the first is used. COLS rows
 * of x are multiplied with what was loaded; they come from the first cache.
 *
 * Rows of w and x lie along k without gaps and begin at multiples of 16 bytes; k fills whole pieces.
 */
#define TEAMS (LANES / SPAN)
#define SLOTS (TEAMS / SPLIT)
#define SUMS (ROWS * COLS)
#define STRETCH (SPLIT * SPAN * VECTORS * ELEMS_PER_CHUNK)

/* One stretch along k from `k` on, in steps of SPAN pieces. */
FN void add_stretch(float *sums, GLOBAL const u8 *const *wr, GLOBAL const u8 *x, i64 sx, int columns, int k, int nk) {
  u4 v[ROWS * VECTORS];
  u4 none;
  none.x = 0u, none.y = 0u, none.z = 0u, none.w = 0u;
  UNROLL for (int i = 0; i < VECTORS; i++) {
    UNROLL for (int r = 0; r < ROWS; r++) {
      int at = k + i * SPAN * ELEMS_PER_CHUNK;
      v[i * ROWS + r] = at < nk ? LOAD16_ONCE(wr[r] + (i64)at * W_NBYTES) : none;
    }
  }
  UNROLL for (int i = 0; i < VECTORS; i++) {
    int at = k + i * SPAN * ELEMS_PER_CHUNK;
    if (at >= nk) break;
    float weights[ROWS * ELEMS_PER_CHUNK];
    UNROLL for (int r = 0; r < ROWS; r++) unpack(weights + r * ELEMS_PER_CHUNK, v[i * ROWS + r]);
    UNROLL for (int c = 0; c < COLS; c++) {
      GLOBAL const u8 *xr = x + MIN(c, columns - 1) * sx + (i64)at * 4;
      float xv[ELEMS_PER_CHUNK];
      UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j += 4) {
        u4 four = LOAD16(xr + j * 4);
        xv[j] = FLOAT_OF_BITS(four.x), xv[j + 1] = FLOAT_OF_BITS(four.y);
        xv[j + 2] = FLOAT_OF_BITS(four.z), xv[j + 3] = FLOAT_OF_BITS(four.w);
      }
      UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) sums[r * COLS + c] += weights[r * ELEMS_PER_CHUNK + j] * xv[j];
      }
    }
  }
}

FN void product(const Product p, LOCAL_PTR float *results, LOCAL_PTR float *scratch) {
  int lane = LANE % SPAN, share = LANE / SPAN % SPLIT, slot = LANE / SPAN / SPLIT;
  int n0 = (p.group * SLOTS + slot) * ROWS;
  GLOBAL const u8 *wr[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) wr[r] = p.w + MAX(MIN(n0 + r, p.rows - 1), 0) * p.sw;
  float sums[SUMS];
  UNROLL for (int i = 0; i < SUMS; i++) sums[i] = 0.0f;
  for (int k = (share * VECTORS * SPAN + lane) * ELEMS_PER_CHUNK; k < p.nk; k += STRETCH)
    add_stretch(sums, wr, p.x, p.sx, p.columns, k, p.nk);
  ADD_OVER_LANES(sums, SUMS, SPAN, scratch);
#define KEPT (SUMS > SPAN ? SUMS / SPAN : 1) /* sums that a lane holds now */
#define APART (SPAN > SUMS ? SPAN / SUMS : 1) /* lanes from one that holds some to the next */
#if SPLIT > 1
  if (lane % APART == 0) {
    UNROLL for (int j = 0; j < KEPT; j++) results[(slot * SPLIT + share) * SUMS + lane / APART * KEPT + j] = sums[j];
  }
  BARRIER();
  for (int i = LANE; i < SLOTS * SUMS; i += LANES) {
    int c = i % COLS, n = p.group * SLOTS * ROWS + i / COLS;
    float sum = 0.0f;
    for (int s = 0; s < SPLIT; s++) sum += results[(i / SUMS * SPLIT + s) * SUMS + i % SUMS];
    if (n < p.rows && c < p.columns) F32_AT(p.y + c * p.sy_column + n * p.sy_row) = sum;
  }
#else
  if (lane % APART == 0) {
    UNROLL for (int j = 0; j < KEPT; j++) {
      int i = lane / APART * KEPT + j, c = i % COLS, n = n0 + i / COLS;
      if (n < p.rows && c < p.columns) F32_AT(p.y + c * p.sy_column + n * p.sy_row) = sums[j];
    }
  }
#endif
}

/* Groups: (n, rows of x / COLS, batches / joined). */
KERNEL(matvec_rows)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int joined) {
  LOCAL float results[TEAMS * SUMS];
  LOCAL float scratch[LANES];
  product(batch_product(w, tw, x, tx, y, ty, GROUP(2), GROUP(1) * COLS, joined), results, scratch);
}

/* Groups: (n, T * U, 1). */
KERNEL(matvec_rows_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *ids, Tens ti,
                       GLOBAL u8 *y, Tens ty, GLOBAL i32 *fault, int code) {
  LOCAL float results[TEAMS * SUMS];
  LOCAL float scratch[LANES];
  product(chosen_product(w, tw, x, tx, ids, ti, y, ty, GROUP(1), fault, code), results, scratch);
}
