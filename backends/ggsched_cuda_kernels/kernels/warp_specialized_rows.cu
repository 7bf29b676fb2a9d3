/* Products of one row of x with up to three weights, bound by reading the weights once.
 *
 *   y[n] = sum_k x[k] w[n, k]  (+ bias[n] (+ more[n]))
 *   y[n] = silu(sum_k x[k] w[n, k]) * sum_k x[k] v[n, k]     with GATED
 *
 * and x may be rms_norm(x) * norm weight (NORM), where x may be the sum of ADDENDS terms and a base; group 0 writes
 * what that gives for others too. With ALSO, y of the first weight is written to that many other places too, unless they
 * are null: the host's memory, which takes what a group has of a set of rows while the next ones are multiplied, or
 * memory of GPUs that add it up with rows of their own.
 *
 * With PEERS_MET the terms are rows of this GPU and of PEERS_MET others. Their products have written them to `staged`:
 * ADDENDS rows side by side. Group 0 sets a word of each other GPU (`peer0`, ...) when all work before this kernel is
 * complete, and every group waits for the words of its own GPU (`own0`, ...). The last group to arrive resets these words
 * and the count of groups, `arrived`. `part` is the sum of all terms but the last, if there are more than two.
 */
#define JOBS 3
#if ALSO == 0
#define ALSO_ARGS
#elif ALSO == 1
#define ALSO_ARGS , u8 *also0
#else
#define ALSO_ARGS , u8 *also0, u8 *also1, u8 *also2, u8 *also3
#endif
#if PEERS_MET
#define PEERS_ARGS , const u8 *staged, u32 *arrived, u32 *own0, u32 *peer0, u32 *own1, u32 *peer1, u32 *own2, u32 *peer2, \
  i64 patience, u8 *part, Tens tpart, GLOBAL i32 *fault, int code
#else
#define PEERS_ARGS
#endif

FN Job job_of(const u8 *w, const Tens tw, const u8 *v, const Tens tv, u8 *y, const Tens ty, const u8 *bias, const Tens tb,
              const u8 *more, const Tens tm, int rows, int adds, int groups) {
  Job job;
  job.w = w + tw.off, job.v = v + tv.off, job.y = y + ty.off;
  job.w_bias = adds > 0 ? bias + tb.off : 0, job.v_bias = adds > 1 ? more + tm.off : 0, job.scale = 0;
#if ALSO
  UNROLL for (int i = 0; i < ALSO; i++) job.also[i] = 0;
#endif
  job.sy = ty.s[3], job.sw_bias = tb.s[3], job.sv_bias = tm.s[3];
  share_rows(&job, rows, GROUP(0), groups);
  return job;
}

/* Groups: one for each multiprocessor. Local memory: stages, and the row. */
extern "C" __global__ void __launch_bounds__(LANES + 32, 1)
warp_specialized_rows(const u8 *x, Tens tx, const u8 *norm, Tens tnorm, u8 *normed, Tens tnormed, float eps, int groups,
         const u8 *terms, Tens tterms, const u8 *base, Tens tbase, const u8 *w0, Tens tw0, const u8 *v0, Tens tv0, u8 *y0, Tens ty0, const u8 *b0, Tens tb0,
         const u8 *m0, Tens tm0, int rows0, int adds0,
         const u8 *w1, Tens tw1, const u8 *v1, Tens tv1, u8 *y1, Tens ty1, const u8 *b1, Tens tb1,
         const u8 *m1, Tens tm1, int rows1, int adds1,
         const u8 *w2, Tens tw2, const u8 *v2, Tens tv2, u8 *y2, Tens ty2, const u8 *b2, Tens tb2,
         const u8 *m2, Tens tm2, int rows2, int adds2 ALSO_ARGS PEERS_ARGS) {
  STAGES_OF(stages);
  LOCAL Gate full[STAGES];
  LOCAL Gate empty[STAGES];
  LOCAL Job jobs[JOBS];
  LOCAL float kept[2 * SET_SUMS];
  if (LANE == LANES) open_gates(full, empty);
  if (LANE == 32) jobs[0] = job_of(w0, tw0, v0, tv0, y0, ty0, b0, tb0, m0, tm0, rows0, adds0, groups);
  if (LANE == 64) jobs[1] = job_of(w1, tw1, v1, tv1, y1, ty1, b1, tb1, m1, tm1, rows1, adds1, groups);
  if (LANE == 96) jobs[2] = job_of(w2, tw2, v2, tv2, y2, ty2, b2, tb2, m2, tm2, rows2, adds2, groups);
#if ALSO
  if (LANE == 32) {
    jobs[0].also[0] = also0;
#if ALSO > 1
    jobs[0].also[1] = also1, jobs[0].also[2] = also2, jobs[0].also[3] = also3;
#endif
  }
#endif
#if NORM
  /* Asked for before the first stages are, behind which it would wait for microseconds. */
  float4 scales[QUADS];
  if (CONSTANT_W && LANE < LANES) load_quads(scales, norm + tnorm.off);
#endif
  BARRIER();
  if (LANE >= LANES) {
    if (LANE == LANES) feed(stages, full, empty, jobs, JOBS, 0);
    return;
  }
  u8 *row = stages + STAGES * STAGE_NBYTES;
  float4 xv[QUADS];
  Kept x_kept[KEPT_COUNT];
#if NORM
  EARLY_WAIT();
  if (!CONSTANT_W) load_quads(scales, norm + tnorm.off);
#if PEERS_MET
  u32 *own = LANE == 0 ? own0 : LANE == 1 ? own1 : own2, *peer = LANE == 0 ? peer0 : LANE == 1 ? peer1 : peer2;
  if (LANE < PEERS_MET) {
    if (GROUP(0) == 0) SIGNAL(peer);
    await_word_(own, patience, fault, code);
  }
  MEET(LANES);
  add_up(xv, staged, NK * 4, base + tbase.off, (u8 *)x + tx.off, ADDENDS > 2 ? part + tpart.off : 0);
#elif ADDENDS
  add_up(xv, terms + tterms.off, tterms.s[3], base + tbase.off, (u8 *)x + tx.off, 0);
#else
  load_quads(xv, x + tx.off);
#endif
  /* The second set is not written before all lanes have met again. */
  normalise(xv, scales, normed + tnormed.off, eps, kept + SET_SUMS);
#else
  EARLY_WAIT();
  load_quads(xv, x + tx.off);
#endif
  put_row(row, xv, kept);
  take_row(x_kept, row);
  multiply(x_kept, stages, full, empty, jobs, JOBS, kept, 0.0f, 0.0f);
#if PEERS_MET
  if (LANE == 0) {
    u32 before;
    ARRIVE(before, arrived);
    if (before == (u32)groups - 1) {
      u32 *all[3] = {own0, own1, own2};
      UNROLL for (int i = 0; i < PEERS_MET; i++) *(volatile u32 *)all[i] = 0;
      *(volatile u32 *)arrived = 0;
    }
  }
#endif
}
