/* Attention of a few tokens, for kernels that say where queries come from; see attention.cu. Behind warps.h and cluster.h; from
 * compute capability 9.0 on.
 *
 * q and y (1, H, T, D), k (1, G, N, D), v (1, G, D, N) with D side by side, mask (1, H, T, N) with the same
 * row for every head, sinks (1, H, T, 1), bounds (1, 1, T, 2): what a token sees begins and ends there. Query heads h of a key head are adjacent. A group takes up to
 * ROWS of them for one token, and of the N positions the share of its place in a cluster of SPLITS groups.
 *
 * A position is read by SPAN lanes, eight elements each (WIDTH = D in all, SPAN >= ROWS), so a warp takes
 * PER positions at once, and has STEPS times that under way. The eight elements of every query row and of
 * its result stay in registers. Each lane knows the running top and sum of one row, `own`; lanes of
 * different positions keep sums of their own until the end. Then those are joined: in a warp by exchange, in
 * a group by local memory, in a cluster by local memory of others, into which each group puts its part of
 * the results that the other one writes.
 *
 * A top of -inf means that nothing was seen: its base is 0, so that exp(-inf - base) is 0 and not NaN.
 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#ifndef ASK_FOR
#define ASK_FOR(p) asm volatile("prefetch.global.L2 [%0];" ::"l"(p))
#endif
#define METHOD __device__ inline
#define ALL_LANES 0xffffffffu
#define MASK 1
#define SINKS 2
#define BOUNDS 4
#define PER (WARP / SPAN)
#define TILE (STEPS * PER)
#define WARPS (LANES / WARP)
#define CHUNKS (WIDTH / 8)
#define ITEMS (ROWS * WIDTH / 4)
#define SLOTS ((ITEMS + SPLITS - 1) / SPLITS)
#define LOWEST FLOAT_OF_BITS(0xff800000u)
#define UNSEEN FLOAT_OF_BITS(0x7f800000u) /* no mask is +inf; one of -inf is added, as NaN stays NaN with it */
#define LINE_NBYTES 128

#ifdef W_F32
#define ITEM_NBYTES 4
typedef struct {
  float4 low, high;
} Eight;
FN Eight eight_at_(const u8 *p) {
  Eight e = {((const float4 *)p)[0], ((const float4 *)p)[1]};
  return e;
}
FN void spread_(Eight e, float *f) {
  f[0] = e.low.x, f[1] = e.low.y, f[2] = e.low.z, f[3] = e.low.w;
  f[4] = e.high.x, f[5] = e.high.y, f[6] = e.high.z, f[7] = e.high.w;
}
#else
#define ITEM_NBYTES 2
typedef uint4 Eight;
FN Eight eight_at_(const u8 *p) { return *(const uint4 *)p; }
#ifdef W_BF16
#define LOW_(u) FLOAT_OF_BITS((u) << 16)
#define HIGH_(u) FLOAT_OF_BITS((u)&0xffff0000u)
#else
#define LOW_(u) FLOAT_OF_HALF((u)&0xffffu)
#define HIGH_(u) FLOAT_OF_HALF((u) >> 16)
#endif
FN void spread_(Eight e, float *f) {
  f[0] = LOW_(e.x), f[1] = HIGH_(e.x), f[2] = LOW_(e.y), f[3] = HIGH_(e.y);
  f[4] = LOW_(e.z), f[5] = HIGH_(e.z), f[6] = LOW_(e.w), f[7] = HIGH_(e.w);
}
#endif

FN float base_of_(float top) { return top == LOWEST ? 0.0f : top; }

/* What the lane that owns row r of these positions has. */
FN float of_row_(float x, int r) { return __shfl_sync(ALL_LANES, x, r * (SPAN / ROWS), SPAN); }

/* What a group does: a token, of a key head `rows` query heads from `head` on, and a share of the positions. */
typedef struct {
  int split, token, key_head, part, head, rows;
} Work;

/* Groups: (SPLITS, G * parts, T), where `parts` groups share the `share` query heads of a key head, up to
 * `each` for one. */
FN Work work_(int share, int each) {
  Work w;
  int parts = (share + each - 1) / each;
  w.split = GROUP(0), w.token = GROUP(2), w.key_head = GROUP(1) / parts, w.part = GROUP(1) % parts;
  w.rows = MIN(each, share - w.part * each), w.head = w.key_head * share + w.part * each;
  return w;
}

/* Let the first rows of a group come near while its predecessor still runs, when memory is less busy than later: that
 * reads nothing, since they come to the L2 cache, where what is written meanwhile goes too. */
FN void ask_for_rows_(Work here, const u8 *k, const Tens tk, const u8 *v, const Tens tv) {
  int from = (WARP_INDEX * SPLITS + here.split) * TILE, chunk = LANE % SPAN;
  UNROLL for (int u = 0; u < STEPS; u++) {
    int i = from + u * PER + WARP_LANE / SPAN;
    if (i >= tk.n[2] || chunk >= CHUNKS) break;
    ASK_FOR(k + tk.off + here.key_head * tk.s[1] + i * tk.s[2] + chunk * (8 * ITEM_NBYTES));
    ASK_FOR(v + tv.off + here.key_head * tv.s[1] + i * tv.s[3] + chunk * (8 * ITEM_NBYTES));
  }
}

/* The same for those of a warp behind its first ones, from `from` on every `step` positions. */
FN void ask_for_more_(Work here, const u8 *k, const Tens tk, const u8 *v, const Tens tv, int from, int step, int n) {
  const int lines = MAX(1, WIDTH * ITEM_NBYTES / LINE_NBYTES);
  for (from += step; from < n; from += step) {
    for (int i = WARP_LANE; i < 2 * TILE * lines; i += WARP) {
      int at = from + i / (2 * lines), line = i / 2 % lines * LINE_NBYTES;
      if (at >= n) break;
      if (i % 2)
        ASK_FOR(v + tv.off + here.key_head * tv.s[1] + at * tv.s[3] + line);
      else
        ASK_FOR(k + tk.off + here.key_head * tk.s[1] + at * tk.s[2] + line);
    }
  }
}

/* A source has: begin(), behind the first loads; query(), the numbers of a head; key() and value(), what counts as
 * eight elements of a position where those were read; and end(), when all groups of the cluster have arrived.
 * It or the kernel lets a group arrive (cluster_arrive_) once before begin() is done: from then on others may
 * write to its local memory. */
template <class Source>
FN void attend_(Source source, Work here, u8 *local, const u8 *k, Tens tk, const u8 *v, Tens tv, const u8 *mask,
                Tens tm, const u8 *sinks, Tens ts, const u8 *bounds, Tens tb, u8 *y, Tens ty, int has, float scale) {
  float4 *partial = (float4 *)local;                    /* [WARPS][ITEMS] */
  float4 *arrived = partial + WARPS * ITEMS;            /* [SPLITS][SLOTS], from each group of the cluster */
  float2 *tops = (float2 *)(arrived + SPLITS * SLOTS);  /* [WARPS][ROWS], top and sum of a row */
  float2 *all_tops = tops + WARPS * ROWS;               /* [SPLITS][ROWS] */

  int n = tk.n[2], split = here.split, token = here.token, rows = here.rows, head = here.head;
  int chunk = LANE % SPAN, sub = WARP_LANE / SPAN, warp = WARP_INDEX, own = chunk * ROWS / SPAN;
  int inside = chunk < CHUNKS;
  const u8 *kc = k + tk.off + here.key_head * tk.s[1] + chunk * (8 * ITEM_NBYTES);
  const u8 *vc = v + tv.off + here.key_head * tv.s[1] + chunk * (8 * ITEM_NBYTES);
  const u8 *mr = mask + tm.off + token * tm.s[2];
  i64 sk = tk.s[2], sv = tv.s[3], sm = tm.s[3];
  int masked = has & MASK, step = SPLITS * WARPS * TILE;

  Eight keys[STEPS], values[STEPS];
  float hidden[STEPS], next[STEPS]; /* what the mask adds; UNSEEN outside of the bounds */
#define POSITION(from, u) ((from) + (u)*PER + sub)
#define LOAD_MASK(to, from)                                                                       \
  UNROLL for (int u = 0; u < STEPS; u++) {                                                        \
    int i = POSITION(from, u);                                                                    \
    to[u] = i < begin || i >= n ? UNSEEN : masked ? READ_F32(mr + i * sm) : 0.0f;                 \
  }
#define LOAD_ROWS(to, from, p, stride)                                                            \
  UNROLL for (int u = 0; u < STEPS; u++) {                                                        \
    int i = POSITION(from, u);                                                                    \
    Eight e = {};                                                                                 \
    if (inside && i < n) e = eight_at_((p) + i * (stride));                                       \
    to[u] = e;                                                                                    \
  }
  int from = (warp * SPLITS + split) * TILE;
  LOAD_ROWS(keys, from, kc, sk);
  LOAD_ROWS(values, from, vc, sv);
  /* The first rows are under way before it is known whether they are seen: mostly they are. */
  int begin = 0;
  if (has & BOUNDS) {
    const u8 *own_bounds = bounds + tb.off + token * tb.s[2];
    begin = MAX(0, READ_I32(own_bounds));
    n = MIN(n, READ_I32(own_bounds + tb.s[3]));
  }
  if (begin > 0) {
    from += begin;
    LOAD_ROWS(keys, from, kc, sk);
    LOAD_ROWS(values, from, vc, sv);
  }
  LOAD_MASK(hidden, from);
  LOAD_MASK(next, from + step);
  ask_for_more_(here, k, tk, v, tv, from, step, n);
  source.begin(here);

  float query[ROWS][8], sum[ROWS][8];
  UNROLL for (int r = 0; r < ROWS; r++) {
    float4 low = make_float4(0.0f, 0.0f, 0.0f, 0.0f), high = low;
    if (inside && r < rows) {
      const float4 *p = source.query(here, r) + 2 * chunk;
      low = p[0], high = p[1];
    }
    query[r][0] = low.x, query[r][1] = low.y, query[r][2] = low.z, query[r][3] = low.w;
    query[r][4] = high.x, query[r][5] = high.y, query[r][6] = high.z, query[r][7] = high.w;
    UNROLL for (int e = 0; e < 8; e++) sum[r][e] = 0.0f;
  }

  float top = LOWEST, total = 0.0f; /* of row `own` over the positions of these lanes */
  for (; from < n; from += step) {
    int seen = 0, wanted = 0;
    UNROLL for (int u = 0; u < STEPS; u++) seen |= hidden[u] != UNSEEN, wanted |= next[u] != UNSEEN;
    seen = __any_sync(ALL_LANES, seen);
    wanted = __any_sync(ALL_LANES, wanted);
    float weight[STEPS], factor = 1.0f;
    if (seen) {
      float highest = top;
      UNROLL for (int u = 0; u < STEPS; u++) {
        float key[8], dot[ROWS];
        spread_(source.key(keys[u], POSITION(from, u), chunk), key);
        UNROLL for (int r = 0; r < ROWS; r++) {
          dot[r] = query[r][0] * key[0];
          UNROLL for (int e = 1; e < 8; e++) dot[r] += query[r][e] * key[e];
        }
        ADD_OVER_LANES(dot, ROWS, SPAN, 0);
        float logit = dot[0] * scale + hidden[u];
        weight[u] = hidden[u] == UNSEEN ? LOWEST : logit;
        highest = MAX(highest, weight[u]);
      }
      float base = base_of_(highest);
      factor = EXP(top - base);
      top = highest;
      total *= factor;
      UNROLL for (int u = 0; u < STEPS; u++) {
        weight[u] = EXP(weight[u] - base);
        total += weight[u];
      }
    }
    if (wanted) {
      LOAD_ROWS(keys, from + step, kc, sk);
    }
    UNROLL for (int u = 0; u < STEPS; u++) hidden[u] = next[u];
    LOAD_MASK(next, from + 2 * step);
    if (seen) {
      /* Skipped for a warp none of whose tops has risen, as for most positions of a long row. */
      if (__any_sync(ALL_LANES, factor != 1.0f)) {
        UNROLL for (int r = 0; r < ROWS; r++) {
          float f = of_row_(factor, r);
          UNROLL for (int e = 0; e < 8; e++) sum[r][e] *= f;
        }
      }
      UNROLL for (int u = 0; u < STEPS; u++) {
        float value[8];
        spread_(source.value(values[u], POSITION(from, u), chunk), value);
        UNROLL for (int r = 0; r < ROWS; r++) {
          float w = of_row_(weight[u], r);
          UNROLL for (int e = 0; e < 8; e++) sum[r][e] += w * value[e];
        }
      }
    }
    if (wanted) {
      LOAD_ROWS(values, from + step, vc, sv);
    }
  }

  /* The positions of a warp. */
  if (PER > 1) {
    float highest = top;
    UNROLL for (int lanes = SPAN; lanes < WARP; lanes *= 2) {
      float other = __shfl_xor_sync(ALL_LANES, highest, lanes);
      highest = MAX(highest, other);
    }
    float factor = EXP(top - base_of_(highest));
    top = highest;
    total *= factor;
    UNROLL for (int lanes = SPAN; lanes < WARP; lanes *= 2) total += __shfl_xor_sync(ALL_LANES, total, lanes);
    UNROLL for (int r = 0; r < ROWS; r++) {
      float f = of_row_(factor, r);
      UNROLL for (int e = 0; e < 8; e++) {
        sum[r][e] *= f;
        UNROLL for (int lanes = SPAN; lanes < WARP; lanes *= 2) sum[r][e] += __shfl_xor_sync(ALL_LANES, sum[r][e], lanes);
      }
    }
  }
  /* First the lower four elements of all chunks, then the upper: neighbours write to different banks. */
  UNROLL for (int r = 0; r < ROWS; r++) {
    if (inside && r % PER == sub) {
      float4 *p = partial + (warp * ROWS + r) * (WIDTH / 4) + chunk;
      p[0] = make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
      p[CHUNKS] = make_float4(sum[r][4], sum[r][5], sum[r][6], sum[r][7]);
    }
  }
  if (sub == 0 && chunk % (SPAN / ROWS) == 0) tops[warp * ROWS + own] = make_float2(top, total);
  BARRIER();

  /* The warps of a group, to the group of the cluster that writes the element. */
  cluster_await_();
  source.end(here);
  for (int i = LANE; i < ITEMS; i += LANES) {
    int r = i / (WIDTH / 4);
    float highest = LOWEST;
    UNROLL for (int w = 0; w < WARPS; w++) highest = MAX(highest, tops[w * ROWS + r].x);
    float base = base_of_(highest);
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int w = 0; w < WARPS; w++) {
      float f = EXP(tops[w * ROWS + r].x - base);
      float4 a = partial[w * ITEMS + i];
      x.x += f * a.x, x.y += f * a.y, x.z += f * a.z, x.w += f * a.w;
    }
    put4_(arrived + split * SLOTS + i % SLOTS, i / SLOTS, x);
  }
  for (int i = LANE; i < SPLITS * ROWS; i += LANES) {
    int r = i % ROWS;
    float highest = LOWEST, all = 0.0f;
    UNROLL for (int w = 0; w < WARPS; w++) highest = MAX(highest, tops[w * ROWS + r].x);
    float base = base_of_(highest);
    UNROLL for (int w = 0; w < WARPS; w++) all += EXP(tops[w * ROWS + r].x - base) * tops[w * ROWS + r].y;
    put2_(all_tops + split * ROWS + r, i / ROWS, make_float2(highest, all));
  }
  cluster_arrive_();
  cluster_await_();

  /* The groups of a cluster. */
  for (int slot = LANE; slot < SLOTS; slot += LANES) {
    int i = split * SLOTS + slot, r = i / (WIDTH / 4), at = i % (WIDTH / 4);
    if (i >= ITEMS || r >= rows) break;
    float sink = (has & SINKS) ? READ_F32(sinks + ts.off + (head + r) * ts.s[1] + token * ts.s[2]) : LOWEST;
    float highest = sink;
    UNROLL for (int g = 0; g < SPLITS; g++) highest = MAX(highest, all_tops[g * ROWS + r].x);
    float base = base_of_(highest), all = (has & SINKS) ? EXP(sink - base) : 0.0f;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int g = 0; g < SPLITS; g++) {
      float f = EXP(all_tops[g * ROWS + r].x - base);
      float4 a = arrived[g * SLOTS + slot];
      all += f * all_tops[g * ROWS + r].y;
      x.x += f * a.x, x.y += f * a.y, x.z += f * a.z, x.w += f * a.w;
    }
    float part_of = all == 0.0f ? 0.0f : 1.0f / all;
    int d = at < CHUNKS ? 8 * at : 8 * (at - CHUNKS) + 4;
    float4 *yr = (float4 *)(y + ty.off + (head + r) * ty.s[1] + token * ty.s[2]);
    yr[d / 4] = make_float4(x.x * part_of, x.y * part_of, x.z * part_of, x.w * part_of);
  }
}
#endif
