/* Products of rows of x with the weights of chosen experts: mul_mat_id, add_id, and what joins them.
 *
 *   y[t, u, n] = (sum_k x[t, u, k] w[e, n, k] + w_bias[e, n]) * scale[t, u]       with e = ids[t, u]
 *   y[t, u, n] = gate(sum_k .. w[e, n, k] + w_bias[e, n], sum_k .. v[e, n, k] + v_bias[e, n])   with GATED
 *
 * Biases and scale may be missing. Ids come from the predecessor, so nothing is fetched before it has ended.
 * Groups: parts * pairs (t, u); `parts` of them share the rows of a pair.
 */
FN const u8 *vector_of(const u8 *from, const Tens t, int has, int id) { return has ? from + t.off + id * t.s[2] : 0; }

extern "C" __global__ void __launch_bounds__(LANES + 32, 1)
fed_experts(const u8 *x, Tens tx, const u8 *ids, Tens ti, const u8 *w, Tens tw, const u8 *v, Tens tv,
            const u8 *w_bias, Tens twb, const u8 *v_bias, Tens tvb, const u8 *scale, Tens ts, u8 *y, Tens ty,
            int parts, int has_bias, int has_scale, float p0, float p1, i32 *fault, int code) {
  STAGES_OF(stages);
  LOCAL Gate full[STAGES];
  LOCAL Gate empty[STAGES];
  LOCAL Job jobs[1];
  LOCAL float kept[2 * SET_SUMS];
  int pair = GROUP(0) / parts, t = pair / ti.n[3], u = pair % ti.n[3];
  if (LANE == LANES) open_gates(full, empty);
  EARLY_WAIT();
  if (LANE >= LANES) {
    int filled = 0;
    if (LANE == LANES) {
      int id = READ_I32(ids + ti.off + t * ti.s[2] + u * ti.s[3]);
      int bad = bad_id(id, tw.n[1], fault, code);
      if (bad) id = 0;
      Job job;
      job.w = w + tw.off + id * tw.s[1], job.v = v + tv.off + id * tv.s[1];
      job.y = y + ty.off + t * ty.s[1] + u * ty.s[2];
      job.w_bias = vector_of(w_bias, twb, has_bias, id), job.v_bias = vector_of(v_bias, tvb, has_bias && GATED, id);
      job.scale = has_scale ? scale + ts.off + t * ts.s[1] + u * ts.s[2] : 0;
      job.sy = ty.s[3], job.sw_bias = twb.s[3], job.sv_bias = tvb.s[3];
      share_rows(&job, tw.n[2], GROUP(0) % parts, parts);
      filled = feed_first(stages, full, &job);
      jobs[0] = job;
    }
    BARRIER();
    if (LANE == LANES) feed(stages, full, empty, jobs, 1, filled);
    return;
  }
  u8 *row = stages + STAGES * STAGE_NBYTES;
  float4 xv[QUADS];
  Kept x_kept[KEPT_COUNT];
  load_quads(xv, x + tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2]);
  BARRIER();
  put_row(row, xv, kept);
  take_row(x_kept, row);
  multiply(x_kept, stages, full, empty, jobs, 1, kept, p0, p1);
}
