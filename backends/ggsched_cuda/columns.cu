/* y[b, m, n] = sum_k x[b, m, k] w[b / ratio, k, n] for few rows m, where columns of w lie side by side: a
 * transposed view, e.g. the values of attention. Behind the text of matvec.cl.
 *
 * A group takes COLUMNS columns of one batch: COLUMNS / VW lanes lie along them, and the others split
 * the sum, which they add up in shared memory. Groups: (n / COLUMNS, batches, rows of x).
 */
#define ACROSS (COLUMNS / VW)
#define SPLITS (LANES / ACROSS)

KERNEL(columns_split)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty) {
  LOCAL float sums[SPLITS][COLUMNS];
  int across = LANE % ACROSS, part = LANE / ACROSS, b = GROUP(1), m = GROUP(2);
  int n0 = GROUP(0) * COLUMNS + across * VW, rest = tw.n[2] - n0, nk = tx.n[3];
  GLOBAL const u8 *wb = w + w_batch(tw, tx, b) + (i64)n0 * W_NBYTES;
  GLOBAL const float *xr = (GLOBAL const float *)(x + x_batch(tx, b) + m * tx.s[2]);
  i64 sk = tw.s[3];
  vf a0 = VSPLAT(0.0f), a1 = a0;
  if (rest >= VW) {
    int k = part;
    for (; k + SPLITS < nk; k += 2 * SPLITS) {
      vf w0 = WLOAD(wb + k * sk, 0), w1 = WLOAD(wb + (k + SPLITS) * sk, 0);
      a0 += w0 * xr[k];
      a1 += w1 * xr[k + SPLITS];
    }
    if (k < nk) a0 += WLOAD(wb + k * sk, 0) * xr[k];
    a0 += a1;
  } else {
    for (int k = part; k < nk; k += SPLITS)
      for (int j = 0; j < rest; j++) a0.v[j] += WITEM(wb + k * sk, j) * xr[k];
  }
  UNROLL for (int j = 0; j < VW; j++) sums[part][across * VW + j] = a0.v[j];
  BARRIER();
  for (int c = LANE; c < COLUMNS; c += LANES) {
    int n = GROUP(0) * COLUMNS + c;
    float sum = 0.0f;
    for (int p = 0; p < SPLITS; p++) sum += sums[p][c];
    if (n < tw.n[2]) F32_AT(y + x_batch(ty, b) + m * ty.s[2] + n * ty.s[3]) = sum;
  }
}
