/* y[b, m, n] = sum_k x[b, m, k] w[b / ratio, n, k] for few rows m: bound by reading w once.
 *
 * Tensors have axes (batch, batch, row, last); rows of x lie along k without gaps. A group walks
 * over all m, so that its part of w comes from the cache from the second m on.
 */

#if X_ALIGNED
#define X_LOAD(p) VLOAD_ALIGNED(p)
#else
#define X_LOAD(p) VLOAD(p)
#endif

/* Byte offsets of batch b, counted over the batch axes of x. */
FN i64 w_batch(const Tens tw, const Tens tx, int b) {
  return tw.off + b / tx.n[1] / (tx.n[0] / tw.n[0]) * tw.s[0] +
         b % tx.n[1] / (tx.n[1] / tw.n[1]) * tw.s[1];
}
FN i64 x_batch(const Tens t, int b) { return t.off + b / t.n[1] * t.s[0] + b % t.n[1] * t.s[1]; }

/* Four rows of w times one of x as sums[0..3]; the rows that do not exist repeat the first. */
FN void four_sums(GLOBAL const u8 *w0, i64 sw, int rows, GLOBAL const u8 *xr, int nk, float *sums,
                  LOCAL_PTR float *scratch) {
  GLOBAL const float *x = (GLOBAL const float *)xr;
  GLOBAL const u8 *w1 = w0 + (rows > 1 ? sw : 0);
  GLOBAL const u8 *w2 = w0 + (rows > 2 ? sw * 2 : 0);
  GLOBAL const u8 *w3 = w0 + (rows > 3 ? sw * 3 : 0);
  vf a0 = VSPLAT(0.0f), a1 = a0, a2 = a0, a3 = a0;
  float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#if W_NBYTES || LANES > 1 /* lanes of a group read neighbours, of blocks too */
  ELEMENTS(k, 0, nk, 1,
           {
             vf v = X_LOAD(x + k);
             a0 += WLOAD(w0, k) * v;
             a1 += WLOAD(w1, k) * v;
             a2 += WLOAD(w2, k) * v;
             a3 += WLOAD(w3, k) * v;
           },
           {
             s0 += WITEM(w0, k) * x[k];
             s1 += WITEM(w1, k) * x[k];
             s2 += WITEM(w2, k) * x[k];
             s3 += WITEM(w3, k) * x[k];
           });
#elif BLOCK_ELEMENTS > 32
  /* A lane has whole blocks, so that the places of scales and bits are constants. */
  for (int k = 0; k < nk; k += BLOCK_ELEMENTS) {
    UNROLL for (int s = 0; s < BLOCK_ELEMENTS; s += 32) {
      a0 += wdot_piece(BLOCK_OF(w0, k), s, x + k + s);
      a1 += wdot_piece(BLOCK_OF(w1, k), s, x + k + s);
      a2 += wdot_piece(BLOCK_OF(w2, k), s, x + k + s);
      a3 += wdot_piece(BLOCK_OF(w3, k), s, x + k + s);
    }
  }
#else
  for (int k = 0; k < nk; k += 32) {
    a0 += wdot(w0, k, x + k);
    a1 += wdot(w1, k, x + k);
    a2 += wdot(w2, k, x + k);
    a3 += wdot(w3, k, x + k);
  }
#endif
  sums[0] = s0 + VSUM(a0), sums[1] = s1 + VSUM(a1), sums[2] = s2 + VSUM(a2), sums[3] = s3 + VSUM(a3);
#if LANES > 1
  LOCAL_PTR float *mine = scratch + 4 * LANE;
  for (int i = 0; i < 4; i++) mine[i] = sums[i];
  BARRIER();
  for (int step = LANES / 2; step > 0; step /= 2) {
    if (LANE < step)
      for (int i = 0; i < 4; i++) mine[i] += mine[4 * step + i];
    BARRIER();
  }
  for (int i = 0; i < 4; i++) sums[i] = scratch[i];
  BARRIER();
#endif
}

/* The same, stored. */
FN void four_rows(GLOBAL const u8 *w0, i64 sw, int rows, GLOBAL const u8 *xr, int nk, GLOBAL u8 *yr,
                  i64 sy, LOCAL_PTR float *scratch) {
  float sums[4];
  four_sums(w0, sw, rows, xr, nk, sums, scratch);
  if (LANE == 0) {
    F32_AT(yr) = sums[0];
    if (rows > 1) F32_AT(yr + sy) = sums[1];
    if (rows > 2) F32_AT(yr + sy * 2) = sums[2];
    if (rows > 3) F32_AT(yr + sy * 3) = sums[3];
  }
}

/* Rows of w lie along k. Groups: (n / 4, batches). */
KERNEL(matvec)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty) {
  LOCAL float scratch[4 * LANES];
  int n0 = GROUP(0) * 4, b = GROUP(1);
  GLOBAL const u8 *wr = w + w_batch(tw, tx, b) + n0 * tw.s[2];
  GLOBAL const u8 *xb = x + x_batch(tx, b);
  GLOBAL u8 *yb = y + x_batch(ty, b) + n0 * ty.s[3];
  for (int m = 0; m < tx.n[2]; m++)
    four_rows(wr, tw.s[2], MIN(4, tw.n[2] - n0), xb + m * tx.s[2], tx.n[3], yb + m * ty.s[2], ty.s[3], scratch);
}

/* The same for w[ids[t, u]] (1, E, n, k) and x (1, T, U or 1, k). Groups: (n / 4, T * U). */
KERNEL(matvec_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *ids, Tens ti,
                  GLOBAL u8 *y, Tens ty, GLOBAL i32 *fault, int code) {
  LOCAL float scratch[4 * LANES];
  int n0 = GROUP(0) * 4, t = GROUP(1) / ti.n[3], u = GROUP(1) % ti.n[3];
  int rows = MIN(4, tw.n[2] - n0);
  int id = expert_of(ids, ti, t, u, tw.n[1], fault, code);
  GLOBAL u8 *yr = y + ty.off + t * ty.s[1] + u * ty.s[2] + n0 * ty.s[3];
  if (id < 0) {
    for (int i = LANE; i < rows; i += LANES) F32_AT(yr + i * ty.s[3]) = 0.0f;
    return;
  }
  GLOBAL const u8 *xr = x + tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2];
  four_rows(w + tw.off + id * tw.s[1] + n0 * tw.s[2], tw.s[2], rows, xr, tx.n[3], yr, ty.s[3], scratch);
}

/* Groups of nodes: what is added, or the gate, before a sum is stored. */
FN float gated(float gate, float up) { return gate / (EXP(-gate) + 1.0f) * up; }

/* y = w x + z, z broadcast by strides of 0; y may be z. Groups: (n / 4, batches). */
KERNEL(matvec_add)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *z, Tens tz,
                   GLOBAL u8 *y, Tens ty) {
  LOCAL float scratch[4 * LANES];
  int n0 = GROUP(0) * 4, b = GROUP(1), rows = MIN(4, tw.n[2] - n0);
  GLOBAL const u8 *wr = w + w_batch(tw, tx, b) + n0 * tw.s[2];
  GLOBAL const u8 *xb = x + x_batch(tx, b), *zb = z + x_batch(tz, b) + n0 * tz.s[3];
  GLOBAL u8 *yb = y + x_batch(ty, b) + n0 * ty.s[3];
  for (int m = 0; m < tx.n[2]; m++) {
    float sums[4];
    four_sums(wr, tw.s[2], rows, xb + m * tx.s[2], tx.n[3], sums, scratch);
    GLOBAL const u8 *zr = zb + m * tz.s[2];
    GLOBAL u8 *yr = yb + m * ty.s[2];
    if (LANE == 0)
      for (int i = 0; i < rows; i++) F32_AT(yr + i * ty.s[3]) = sums[i] + READ_F32(zr + i * tz.s[3]);
  }
}

/* y = gate / (exp(-gate) + 1) * up of gate = w x and up = v x. Groups: (n / 4, batches). */
KERNEL(matvec_gated)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *x, Tens tx,
                     GLOBAL u8 *y, Tens ty) {
  LOCAL float scratch[4 * LANES];
  int n0 = GROUP(0) * 4, b = GROUP(1), rows = MIN(4, tw.n[2] - n0);
  GLOBAL const u8 *wr = w + w_batch(tw, tx, b) + n0 * tw.s[2];
  GLOBAL const u8 *vr = v + w_batch(tv, tx, b) + n0 * tv.s[2];
  GLOBAL const u8 *xb = x + x_batch(tx, b);
  GLOBAL u8 *yb = y + x_batch(ty, b) + n0 * ty.s[3];
  for (int m = 0; m < tx.n[2]; m++) {
    float gates[4], ups[4];
    four_sums(wr, tw.s[2], rows, xb + m * tx.s[2], tx.n[3], gates, scratch);
    four_sums(vr, tv.s[2], rows, xb + m * tx.s[2], tx.n[3], ups, scratch);
    GLOBAL u8 *yr = yb + m * ty.s[2];
    if (LANE == 0)
      for (int i = 0; i < rows; i++) F32_AT(yr + i * ty.s[3]) = gated(gates[i], ups[i]);
  }
}

/* matvec_id with a row of z (1, 1, E, n) added that the same ids choose. Groups: (n / 4, T * U). */
KERNEL(matvec_id_add)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *ids, Tens ti,
                      GLOBAL const u8 *z, Tens tz, GLOBAL u8 *y, Tens ty, GLOBAL i32 *fault, int code) {
  LOCAL float scratch[4 * LANES];
  int n0 = GROUP(0) * 4, t = GROUP(1) / ti.n[3], u = GROUP(1) % ti.n[3];
  int rows = MIN(4, tw.n[2] - n0);
  int id = expert_of(ids, ti, t, u, tw.n[1], fault, code);
  GLOBAL u8 *yr = y + ty.off + t * ty.s[1] + u * ty.s[2] + n0 * ty.s[3];
  if (id < 0) {
    for (int i = LANE; i < rows; i += LANES) F32_AT(yr + i * ty.s[3]) = 0.0f;
    return;
  }
  GLOBAL const u8 *xr = x + tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2];
  GLOBAL const u8 *zr = z + tz.off + id * tz.s[2] + n0 * tz.s[3];
  float sums[4];
  four_sums(w + tw.off + id * tw.s[1] + n0 * tw.s[2], tw.s[2], rows, xr, tx.n[3], sums, scratch);
  if (LANE == 0)
    for (int i = 0; i < rows; i++) F32_AT(yr + i * ty.s[3]) = sums[i] + READ_F32(zr + i * tz.s[3]);
}

/* matvec_gated with weights chosen by ids. Groups: (n / 4, T * U). */
KERNEL(matvec_id_gated)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *x, Tens tx,
                        GLOBAL const u8 *ids, Tens ti, GLOBAL u8 *y, Tens ty, GLOBAL i32 *fault, int code) {
  LOCAL float scratch[4 * LANES];
  int n0 = GROUP(0) * 4, t = GROUP(1) / ti.n[3], u = GROUP(1) % ti.n[3];
  int rows = MIN(4, tw.n[2] - n0);
  int id = expert_of(ids, ti, t, u, tw.n[1], fault, code);
  GLOBAL u8 *yr = y + ty.off + t * ty.s[1] + u * ty.s[2] + n0 * ty.s[3];
  if (id < 0) {
    for (int i = LANE; i < rows; i += LANES) F32_AT(yr + i * ty.s[3]) = 0.0f;
    return;
  }
  GLOBAL const u8 *xr = x + tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2];
  float gates[4], ups[4];
  four_sums(w + tw.off + id * tw.s[1] + n0 * tw.s[2], tw.s[2], rows, xr, tx.n[3], gates, scratch);
  four_sums(v + tv.off + id * tv.s[1] + n0 * tv.s[2], tv.s[2], rows, xr, tx.n[3], ups, scratch);
  if (LANE == 0)
    for (int i = 0; i < rows; i++) F32_AT(yr + i * ty.s[3]) = gated(gates[i], ups[i]);
}

#if W_NBYTES
/* Columns of w lie along n (a transposed view, e.g. the values of attention): each lane keeps the
 * sums of 4 * VW neighbours. Groups: (n / (4 * VW * LANES), batches). */
KERNEL(matvec_columns)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty) {
  int n0 = (GROUP(0) * LANES + LANE) * 4 * VW, b = GROUP(1), rest = tw.n[2] - n0;
  GLOBAL const u8 *wb = w + w_batch(tw, tx, b) + (i64)n0 * W_NBYTES;
  i64 sk = tw.s[3], step = VW * W_NBYTES;
  for (int m = 0; m < tx.n[2] && rest > 0; m++) {
    GLOBAL const float *xr = (GLOBAL const float *)(x + x_batch(tx, b) + m * tx.s[2]);
    GLOBAL float *yr = (GLOBAL float *)(y + x_batch(ty, b) + m * ty.s[2]) + n0;
    int j = 0;
    if (rest >= 4 * VW) {
      vf a0 = VSPLAT(0.0f), a1 = a0, a2 = a0, a3 = a0;
      for (int k = 0; k < tx.n[3]; k++) {
        GLOBAL const u8 *wk = wb + k * sk;
        float v = xr[k];
        a0 += WLOAD(wk, 0) * v;
        a1 += WLOAD(wk + step, 0) * v;
        a2 += WLOAD(wk + step * 2, 0) * v;
        a3 += WLOAD(wk + step * 3, 0) * v;
      }
      VSTORE(a0, yr);
      VSTORE(a1, yr + VW);
      VSTORE(a2, yr + 2 * VW);
      VSTORE(a3, yr + 3 * VW);
      continue;
    }
    for (; j + VW <= rest; j += VW) {
      vf a = VSPLAT(0.0f);
      for (int k = 0; k < tx.n[3]; k++) a += WLOAD(wb + k * sk + j * W_NBYTES, 0) * xr[k];
      VSTORE(a, yr + j);
    }
    for (; j < rest; j++) {
      float a = 0.0f;
      for (int k = 0; k < tx.n[3]; k++) a += WITEM(wb + k * sk, j) * xr[k];
      yr[j] = a;
    }
  }
}
#endif
