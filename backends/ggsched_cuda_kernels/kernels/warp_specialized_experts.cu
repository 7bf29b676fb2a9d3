/* Products of rows of x with the weights of chosen experts: mul_mat_id, add_id, and what joins them.
 *
 *   y[t, u, n] = (sum_k x[t, u, k] w[e, n, k] + w_bias[e, n]) * scale[t, u]       with e = ids[t, u]
 *   y[t, u, n] = gate(sum_k .. w[e, n, k] + w_bias[e, n], sum_k .. v[e, n, k] + v_bias[e, n])   with GATED
 *
 * Biases and scale may be missing. Ids come from the predecessor, so nothing is fetched before it has ended.
 * Groups: parts * pairs (t, u); `parts` of them share the rows of a pair.
 *
 * With ROUTED the ids are not there yet: the producer warp chooses among the EXPERTS logits of its token, as
 * route_chosen does, every group for itself. The first group of a token writes what the nodes before would have: the
 * COUNT ids, their logits, and the softmax of these.
 *
 * With SOME the weights have some of the experts: those from ti.n[0] on, of ti.n[1]. Of the COUNT rows of a token its
 * groups share those whose expert is here, so that all of them read, and set the others to 0.
 */
#if ROUTED
#define OF_LANE ((EXPERTS + WARP - 1) / WARP) /* logits: every WARP-th */
FN u32 joined_(u32 bits) {
  UNROLL for (int step = 16; step > 0; step /= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, step);
  return bits;
}

struct Route {
  float logits[OF_LANE];
  int places[OF_LANE]; /* how many logits of the token come before each */

  __device__ inline void load(const u8 *x, Tens tx, int t) {
    i32 keys[OF_LANE];
    UNROLL for (int r = 0; r < OF_LANE; r++) {
      int n = r * WARP + WARP_LANE;
      /* What is behind the last one counts as NaN, which comes last. */
      logits[r] = n < EXPERTS ? READ_F32(x + tx.off + t * tx.s[2] + n * tx.s[3]) : FLOAT_OF_BITS(0x7fffffffu);
      keys[r] = sort_key(logits[r], 1), places[r] = 0;
    }
    UNROLL for (int from = 0; from < OF_LANE; from++) {
      UNROLL for (int lane = 0; lane < WARP; lane++) {
        i32 key = __shfl_sync(0xffffffffu, keys[from], lane, WARP);
        /* Keys are larger than the smallest integer. */
        UNROLL for (int r = 0; r < OF_LANE; r++)
          places[r] += key <= keys[r] - (from * WARP + lane >= r * WARP + WARP_LANE);
      }
    }
  }
  /* The bits, or the number, of the logit at a place; for all lanes. */
  __device__ inline u32 bits_at(int place) {
    u32 bits = 0;
    UNROLL for (int r = 0; r < OF_LANE; r++) bits |= places[r] == place ? BITS_OF_FLOAT(logits[r]) : 0u;
    return joined_(bits);
  }
  __device__ inline int number_at(int place) {
    u32 number = 0;
    UNROLL for (int r = 0; r < OF_LANE; r++) number |= places[r] == place ? (u32)(r * WARP + WARP_LANE) : 0u;
    return (int)joined_(number);
  }
  __device__ inline void write(u8 *ids, Tens ti, u8 *picked, Tens tp, u8 *y, Tens ty, int t, float scale) {
    float own = 0.0f, top = FLOAT_OF_BITS(0xff800000u), sum = 0.0f, row[COUNT];
    int number = 0;
    UNROLL for (int place = 0; place < COUNT; place++) {
      row[place] = FLOAT_OF_BITS(bits_at(place));
      int at = number_at(place);
      if (WARP_LANE == place) own = row[place], number = at;
      top = MAX(top, row[place] * scale);
    }
    UNROLL for (int place = 0; place < COUNT; place++) sum += EXP(row[place] * scale - top);
    if (WARP_LANE >= COUNT) return;
    *(i32 *)(ids + ti.off + t * ti.s[2] + WARP_LANE * ti.s[3]) = number;
    F32_AT(picked + tp.off + t * tp.s[2] + WARP_LANE * tp.s[3]) = own;
    F32_AT(y + ty.off + t * ty.s[2] + WARP_LANE * ty.s[3]) = EXP(own * scale - top) * (1.0f / sum);
  }
};
#endif

FN const u8 *vector_of(const u8 *from, const Tens t, int has, int id) { return has ? from + t.off + id * t.s[2] : 0; }

extern "C" __global__ void __launch_bounds__(LANES + 32, 1)
warp_specialized_experts(const u8 *x, Tens tx, const u8 *ids, Tens ti, const u8 *w, Tens tw, const u8 *v, Tens tv,
            const u8 *w_bias, Tens twb, const u8 *v_bias, Tens tvb, const u8 *scale, Tens ts, u8 *y, Tens ty,
            int parts, int has_bias, int has_scale, float p0, float p1, i32 *fault, int code, const u8 *logits, Tens tl,
            u8 *picked, Tens tp, u8 *chosen, Tens tc, float logit_scale) {
  STAGES_OF(stages);
  LOCAL Gate full[STAGES];
  LOCAL Gate empty[STAGES];
  LOCAL Job jobs[1];
  LOCAL float kept[2 * SET_SUMS];
  int groups = parts * ti.n[3], t = GROUP(0) / groups, own = GROUP(0) % groups; /* of the groups of a token */
  int u = own / parts, part = own % parts;
#if SOME
  LOCAL int experts[COUNT];
  LOCAL int chosen_row[1];
#endif
  if (LANE == LANES) open_gates(full, empty);
  EARLY_WAIT();
  if (LANE >= LANES) {
    int filled = 0;
#if ROUTED
    Route route;
    route.load(logits, tl, t);
#endif
#if SOME
    int here = 0, id = 0, nth = 0;
    UNROLL for (int i = 0; i < COUNT; i++) {
#if ROUTED
      int expert = row_here(route.number_at(i), ti.n[0], ti.n[1], tw.n[1], fault, code);
#else
      int expert = expert_of(ids, ti, t, i, tw.n[1], fault, code);
#endif
      if (LANE == LANES) experts[i] = expert;
      here += expert >= 0;
    }
    if (LANE == LANES) {
      for (int i = 0; i < COUNT; i++)
        if (experts[i] >= 0 && nth++ == own % here) u = i, id = experts[i];
      chosen_row[0] = u, part = here ? own / here : 0, parts = here ? (groups - own % here + here - 1) / here : 1;
    }
#elif ROUTED
    int id = route.number_at(u);
    if (LANE == LANES && bad_id(id, tw.n[1], fault, code)) id = 0;
#else
    int id = LANE == LANES ? MAX(0, expert_of(ids, ti, t, u, tw.n[1], fault, code)) : 0;
#endif
    if (LANE == LANES) {
      Job job;
      job.w = w + tw.off + id * tw.s[1], job.v = v + tv.off + id * tv.s[1];
      job.y = y + ty.off + t * ty.s[1] + u * ty.s[2];
      job.w_bias = vector_of(w_bias, twb, has_bias, id), job.v_bias = vector_of(v_bias, tvb, has_bias && GATED, id);
      job.scale = has_scale ? scale + ts.off + t * ts.s[1] + u * ts.s[2] : 0;
      job.sy = ty.s[3], job.sw_bias = twb.s[3], job.sv_bias = tvb.s[3];
#if SOME
      share_rows(&job, here ? tw.n[2] : 0, part, parts);
#else
      share_rows(&job, tw.n[2], part, parts);
#endif
      filled = feed_first(stages, full, &job);
      jobs[0] = job;
    }
    BARRIER();
#if ROUTED
    if (own == 0) route.write((u8 *)ids, ti, picked, tp, chosen, tc, t, logit_scale);
#endif
    if (LANE == LANES) feed(stages, full, empty, jobs, 1, filled);
    return;
  }
  u8 *row = stages + STAGES * STAGE_NBYTES;
  float4 xv[QUADS];
  Kept x_kept[KEPT_COUNT];
#if SOME
  BARRIER();
  u = chosen_row[0];
  for (int i = 0; i < COUNT; i++)
    for (int n = own * LANES + LANE; experts[i] < 0 && n < tw.n[2]; n += groups * LANES)
      F32_AT(y + ty.off + t * ty.s[1] + i * ty.s[2] + n * ty.s[3]) = 0.0f;
#endif
  load_quads(xv, x + tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2]);
#if !SOME
  BARRIER();
#endif
  put_row(row, xv, kept);
  take_row(x_kept, row);
  multiply(x_kept, stages, full, empty, jobs, 1, kept, p0, p1);
}
