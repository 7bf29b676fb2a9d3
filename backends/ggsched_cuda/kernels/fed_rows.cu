/* Products of one row of x with up to three weights, bound by reading the weights once.
 *
 *   y[n] = sum_k x[k] w[n, k]  (+ bias[n] (+ more[n]))
 *   y[n] = silu(sum_k x[k] w[n, k]) * sum_k x[k] v[n, k]     with GATED
 *
 * and x may be rms_norm(x) * norm weight, which group 0 writes for others too (NORM).
 */
#define JOBS 3

#if !TILES
/* Scale x to rms_norm(x) * w; group 0 writes it to y. Every team has all of x. */
FN void normalise(float *x, const float *w, u8 *y, float eps, float *scratch) {
  float sum = 0.0f;
  UNROLL for (int i = 0; i < UNITS * PIECE_ITEMS; i++) sum += x[i] * x[i];
  UNROLL for (int step = 16; step > 0; step /= 2) sum += EXCHANGED(sum, step, scratch);
  if (WARP_LANE == 0) scratch[WARP_INDEX] = sum;
  MEET(LANES);
  sum = 0.0f;
  UNROLL for (int i = 0; i < TEAM_WARPS; i++) sum += scratch[i];
  float scale = 1.0f / SQRT(sum / (float)NK + eps);
  UNROLL for (int i = 0; i < UNITS * PIECE_ITEMS; i++) x[i] = x[i] * scale * w[i];
  if (GROUP(0) != 0 || LANE >= TEAM_LANES) return;
  UNROLL for (int u = 0; u < UNITS; u++) {
    int piece = u * TEAM_LANES + TEAM_LANE;
    if (piece >= PIECES) break;
    UNROLL for (int j = 0; j < PIECE_ITEMS; j += 4) {
      const float *v = x + u * PIECE_ITEMS + j;
      ((float4 *)y)[(piece * PIECE_ITEMS + j) / 4] = make_float4(v[0], v[1], v[2], v[3]);
    }
  }
}
#endif

FN Job job_of(const u8 *w, const Tens tw, const u8 *v, const Tens tv, u8 *y, const Tens ty, const u8 *bias, const Tens tb,
              const u8 *more, const Tens tm, int rows, int adds, int groups) {
  Job job;
  job.w = w + tw.off, job.v = v + tv.off, job.y = y + ty.off;
  job.w_bias = adds > 0 ? bias + tb.off : 0, job.v_bias = adds > 1 ? more + tm.off : 0, job.scale = 0;
  job.sy = ty.s[3], job.sw_bias = tb.s[3], job.sv_bias = tm.s[3];
  share_rows(&job, rows, GROUP(0), groups);
  return job;
}

/* Groups: one for each multiprocessor. Local memory: stages. */
extern "C" __global__ void __launch_bounds__(LANES + 32, 1)
fed_rows(const u8 *x, Tens tx, const u8 *norm, Tens tnorm, u8 *normed, Tens tnormed, float eps, int groups,
         const u8 *w0, Tens tw0, const u8 *v0, Tens tv0, u8 *y0, Tens ty0, const u8 *b0, Tens tb0,
         const u8 *m0, Tens tm0, int rows0, int adds0,
         const u8 *w1, Tens tw1, const u8 *v1, Tens tv1, u8 *y1, Tens ty1, const u8 *b1, Tens tb1,
         const u8 *m1, Tens tm1, int rows1, int adds1,
         const u8 *w2, Tens tw2, const u8 *v2, Tens tv2, u8 *y2, Tens ty2, const u8 *b2, Tens tb2,
         const u8 *m2, Tens tm2, int rows2, int adds2) {
  STAGES_OF(stages);
  LOCAL Gate full[STAGES];
  LOCAL Gate empty[STAGES];
  LOCAL Job jobs[JOBS];
  LOCAL float kept[2 * SET_SUMS];
  open_gates(full, empty);
  if (LANE == 32) jobs[0] = job_of(w0, tw0, v0, tv0, y0, ty0, b0, tb0, m0, tm0, rows0, adds0, groups);
  if (LANE == 64) jobs[1] = job_of(w1, tw1, v1, tv1, y1, ty1, b1, tb1, m1, tm1, rows1, adds1, groups);
  if (LANE == 96) jobs[2] = job_of(w2, tw2, v2, tv2, y2, ty2, b2, tb2, m2, tm2, rows2, adds2, groups);
  BARRIER();
  if (LANE >= LANES) {
    if (LANE == LANES) feed(stages, full, empty, jobs, JOBS);
    return;
  }
#if TILES
  Kept x_kept[PAIRS];
  const u8 *row = x + tx.off, *weight = NORM ? norm + tnorm.off : 0;
  float scale = 1.0f;
  EARLY_WAIT();
#if NORM
  /* The second set is not written before all lanes have met again. */
  scale = norm_scale(row, eps, kept + SET_SUMS);
  if (GROUP(0) == 0) store_normed(normed + tnormed.off, row, weight, scale);
#endif
  keep_row(x_kept, row, weight, scale, kept);
#else
  float xv[UNITS * PIECE_ITEMS];
  Kept x_kept[UNITS];
#if NORM
  float scales[UNITS * PIECE_ITEMS];
  if (!CONSTANT_W) EARLY_WAIT();
  load_pieces(scales, norm + tnorm.off);
  EARLY_WAIT();
  load_pieces(xv, x + tx.off);
  /* The second set is not written before all lanes have met again. */
  normalise(xv, scales, normed + tnormed.off, eps, kept + SET_SUMS);
#else
  EARLY_WAIT();
  load_pieces(xv, x + tx.off);
#endif
  UNROLL for (int u = 0; u < UNITS; u++) keep(x_kept + u, xv + u * PIECE_ITEMS);
#endif
  multiply(x_kept, stages, full, empty, jobs, JOBS, kept, 0.0f, 0.0f);
}
