/* y = shares * v, shares = softmax(q k * scale + mask), block by block, so that no table of shares is in memory.
 *
 * q (1, T, H, D), k (1, N, G, D), v (1, N, G, E), mask (1, H, T, N), sinks (1, 1, 1, H), bounds (1, 1, T, 2), y (1, T, H, E).
 * `share` = H / G heads of queries meet one head of keys. Their rows, of all tokens, are one matrix: row i is head i % share
 * of token i / share. A group takes BR of these rows, and BC rows of keys and then of values at a time, unpacked to a local
 * tile. Each row keeps its largest logit and its sum so far; what it has added up shrinks when a larger logit comes.
 * Lanes take blocks of MR rows by NR keys, then of MR rows by VE vectors. Rows in local memory are PITCH elements apart. Where
 * TURNED, which takes many rows to pay, keys lie side by side instead, so that sums need not be added up across a vector; then
 * blocks are of NR vectors of keys.
 *
 * With ROPE, of one token, a group first rotates its queries and writes its rows of keys and values into caches, as up
 * to three jobs of rope_kv_write.cl do, of each so many heads.
 *
 * REDO is the number of rows of which attention_halves says in `parts` whether they have to be computed again.
 *
 * With `splits` > 1 the rows of keys that are seen are cut into that number of shares, one for each group along the last axis; what
 * they have goes to `parts`, (splits, T * H, E + 2) with the largest logit and the sum at the end, and attention_join adds it up.
 */
#define MASK 1
#define SINKS 2
#define BOUNDS 4
#define PITCH_S (BC + VW)
#define LOWEST FLOAT_OF_BITS(0xff7fffffu) /* finite: exp(-inf - LOWEST) is 0 */
#define HIDDEN FLOAT_OF_BITS(0xff800000u)

#if ROPE
#define TURNED_JOBS , JOB_(0), JOB_(1), JOB_(2), int heads0, int heads1, int heads2
#define TURN_HEADS(n) \
  for (int h = LANE / TURN_LANES; h < heads##n; h += LANES / TURN_LANES) turn_head_(GIVEN_(n), 0, GROUP(1) * heads##n + h)
#else
#define TURNED_JOBS
#endif

/* Unpack rows from `row` on, BC in all, and zeros behind the last one and behind the last element. */
FN void unpack_rows(LOCAL_PTR float *tile, GLOBAL const u8 *p, i64 sn, i64 se, int rows, int width) {
#if W_NBYTES == 0 /* widths are whole blocks, which lie side by side */
  for (int i = LANE; i < width / 32 * BC; i += LANES) {
    int c = i / (width / 32), e = i % (width / 32) * 32;
    LOCAL_PTR float *to = tile + c * PITCH + e;
    if (c < rows) {
      wunpack(p + c * sn, e, to);
    } else {
      for (int j = 0; j < 32; j++) to[j] = 0.0f;
    }
  }
#else
  int vectors = (width + VW - 1) / VW;
  for (int i = LANE; i < vectors * BC; i += LANES) {
    int c = i / vectors, e = i % vectors * VW;
    LOCAL_PTR float *to = tile + c * PITCH + e;
    GLOBAL const u8 *row = p + c * sn;
    if (c < rows && e + VW <= width && se == W_NBYTES) {
      VSTORE_LOCAL(WLOAD(row, e), to);
    } else {
      for (int j = 0; j < VW; j++) to[j] = c < rows && e + j < width ? WITEM(row + (e + j) * se, 0) : 0.0f;
    }
  }
#endif
}

#if TURNED
/* The same, but for columns: element e of all rows side by side. */
FN void unpack_turned(LOCAL_PTR float *tile, GLOBAL const u8 *p, i64 sn, i64 se, int rows, int width) {
  for (int c = LANE; c < BC; c += LANES) {
    GLOBAL const u8 *row = p + MIN(c, rows - 1) * sn;
    if ((se == W_NBYTES) | (W_NBYTES == 0)) {
      for (int e = 0; e < width; e++) tile[e * BC + c] = WITEM(row, e);
    } else {
      for (int e = 0; e < width; e++) tile[e * BC + c] = WITEM(row + e * se, 0);
    }
  }
}
#endif

/* Groups: (T * share / BR, G, splits). */
KERNEL(attention_blocks)(GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *q, Tens tq,
                         GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *sinks, Tens ts, GLOBAL const u8 *bounds,
                         Tens tb, GLOBAL u8 *y, Tens ty, GLOBAL u8 *parts, int has, float scale, float cap, int share,
                         int splits TURNED_JOBS) {
  LOCAL float queries[BR * PITCH];
  LOCAL float sums[BR * PITCH];
  LOCAL float tile[BC * PITCH];
  LOCAL float logits[BR * PITCH_S];
  LOCAL float top[BR];
  LOCAL float total[BR];
  LOCAL float shrink[BR];
  LOCAL int first[BR];
  LOCAL int end[BR];
  int n = tk.n[1], width = tk.n[3], across = tv.n[3], tokens = tq.n[1], group = GROUP(1), split = GROUP(2);
  int row0 = GROUP(0) * BR, rows = MIN(BR, tokens * share - row0), from = n, to = 0;
  int vectors = (width + VW - 1) / VW, chunks = (across + VW * VE - 1) / (VW * VE);

#if ROPE
  TURN_HEADS(0);
  TURN_HEADS(1);
  TURN_HEADS(2);
  BARRIER();
#endif
#if REDO
  if (!((GLOBAL const i32 *)parts)[group * ((tokens * share + REDO - 1) / REDO) + row0 / REDO]) return;
#endif
  for (int t = row0 / share; t <= (row0 + rows - 1) / share; t++) {
    int low = 0, high = n;
    if (has & BOUNDS) {
      low = MAX(0, READ_I32(bounds + tb.off + t * tb.s[2]));
      high = MIN(n, READ_I32(bounds + tb.off + t * tb.s[2] + tb.s[3]));
    }
    if (low < high) from = MIN(from, low), to = MAX(to, high);
  }
  if (splits > 1) {
    int each = (MAX(0, to - from) + splits - 1) / splits;
    each = (each + BC - 1) / BC * BC;
    from += split * each;
    to = MIN(to, from + each);
  }
  for (int r = LANE; r < BR; r += LANES) {
    int h = group * share + (row0 + r) % share, t = (row0 + r) / share;
    float sink = (has & SINKS) && splits == 1 && r < rows ? READ_F32(sinks + ts.off + h * ts.s[3]) : LOWEST;
    top[r] = MAX(sink, LOWEST);
    total[r] = sink > LOWEST ? 1.0f : 0.0f;
    first[r] = (has & BOUNDS) && r < rows ? READ_I32(bounds + tb.off + t * tb.s[2]) : 0;
    end[r] = (has & BOUNDS) && r < rows ? READ_I32(bounds + tb.off + t * tb.s[2] + tb.s[3]) : n;
  }
  for (int i = LANE; i < BR * vectors * VW; i += LANES) {
    int r = i / (vectors * VW), d = i % (vectors * VW);
    int h = group * share + (row0 + r) % share, t = (row0 + r) / share;
    int is_there = r < rows && d < width;
    queries[r * PITCH + d] = is_there ? READ_F32(q + tq.off + t * tq.s[1] + h * tq.s[2] + d * tq.s[3]) : 0.0f;
  }
  for (int i = LANE; i < BR * PITCH; i += LANES) sums[i] = 0.0f;
  BARRIER();

  for (int n0 = from; n0 < to; n0 += BC) {
    int count = MIN(BC, to - n0);
    GLOBAL const u8 *keys = k + tk.off + group * tk.s[2] + n0 * tk.s[1];
#if TURNED
    unpack_turned(tile, keys, tk.s[1], tk.s[3], count, width);
    BARRIER();
    for (int i = LANE; i < BR / MR * (BC / (VW * NR)); i += LANES) {
      int r0 = i / (BC / (VW * NR)) * MR, c0 = i % (BC / (VW * NR)) * (VW * NR);
      if (r0 >= rows) break;
      LOCAL_PTR const float *a = queries + r0 * PITCH;
      vf acc[MR * NR];
      UNROLL for (int j = 0; j < MR * NR; j++) acc[j] = VSPLAT(0.0f);
      for (int d = 0; d < width; d++) {
        vf w[NR];
        UNROLL for (int c = 0; c < NR; c++) w[c] = VLOAD_LOCAL(tile + d * BC + c0 + c * VW);
        UNROLL for (int r = 0; r < MR; r++) {
          float x = a[r * PITCH + d];
          UNROLL for (int c = 0; c < NR; c++) acc[r * NR + c] += w[c] * x;
        }
      }
      UNROLL for (int r = 0; r < MR; r++) {
        UNROLL for (int c = 0; c < NR; c++) VSTORE_LOCAL(acc[r * NR + c], logits + (r0 + r) * PITCH_S + c0 + c * VW);
      }
    }
#else
    unpack_rows(tile, keys, tk.s[1], tk.s[3], count, width);
    BARRIER();
    for (int i = LANE; i < BR / MR * (BC / NR); i += LANES) {
      int r0 = i / (BC / NR) * MR, c0 = i % (BC / NR) * NR;
      if (r0 >= rows) break;
      LOCAL_PTR const float *a = queries + r0 * PITCH;
      LOCAL_PTR const float *b = tile + c0 * PITCH;
      vf acc[MR * NR];
      UNROLL for (int j = 0; j < MR * NR; j++) acc[j] = VSPLAT(0.0f);
      for (int d = 0; d < width; d += VW) {
        vf x[MR];
        UNROLL for (int r = 0; r < MR; r++) x[r] = VLOAD_LOCAL(a + r * PITCH + d);
        UNROLL for (int c = 0; c < NR; c++) {
          vf w = VLOAD_LOCAL(b + c * PITCH + d);
          UNROLL for (int r = 0; r < MR; r++) acc[c * MR + r] += x[r] * w;
        }
      }
      UNROLL for (int c = 0; c < NR; c++) {
        UNROLL for (int r = 0; r < MR; r++) logits[(r0 + r) * PITCH_S + c0 + c] = VSUM(acc[c * MR + r]);
      }
    }
#endif
    BARRIER();
    unpack_rows(tile, v + tv.off + group * tv.s[2] + n0 * tv.s[1], tv.s[1], tv.s[3], count, across);
    for (int i = LANE; i < rows * (BC / VW); i += LANES) {
      int r = i / (BC / VW), c = i % (BC / VW) * VW;
      int low = first[r] - n0 - c, high = MIN(count, end[r] - n0) - c;
      LOCAL_PTR float *x = logits + r * PITCH_S + c;
      vf z = VLOAD_LOCAL(x) * scale;
      if (cap > 0.0f) z = VTANH(z / cap) * cap;
      VSTORE_LOCAL(z, x);
      if (has & MASK) {
        int h = group * share + (row0 + r) % share, t = (row0 + r) / share;
        GLOBAL const u8 *add = mask + tm.off + h * tm.s[1] + t * tm.s[2] + (n0 + c) * tm.s[3];
        for (int j = 0; j < MIN(VW, high); j++) x[j] += READ_F32(add + j * tm.s[3]);
      }
      if (low > 0 || high < VW) {
        for (int j = 0; j < VW; j++) x[j] = j >= low && j < high ? x[j] : HIDDEN;
      }
    }
    BARRIER();
    for (int r = LANE; r < rows; r += LANES) {
      LOCAL_PTR float *x = logits + r * PITCH_S;
      vf most = VSPLAT(LOWEST), sum = VSPLAT(0.0f);
      for (int c = 0; c < BC; c += VW) most = VMAX(most, VLOAD_LOCAL(x + c));
      float highest = VTOP(most);
      highest = MAX(highest, top[r]);
      for (int c = 0; c < BC; c += VW) {
        vf e = VEXP(VLOAD_LOCAL(x + c) - highest);
        sum += e;
        VSTORE_LOCAL(e, x + c);
      }
      shrink[r] = EXP(top[r] - highest);
      total[r] = total[r] * shrink[r] + VSUM(sum);
      top[r] = highest;
    }
    BARRIER();
    for (int i = LANE; i < BR / MR * chunks; i += LANES) {
      int r0 = i / chunks * MR, e0 = i % chunks * (VW * VE);
      if (r0 >= rows) break;
      LOCAL_PTR float *to_row = sums + r0 * PITCH + e0;
      LOCAL_PTR const float *p = logits + r0 * PITCH_S;
      vf acc[MR * VE];
      UNROLL for (int r = 0; r < MR; r++) {
        float f = shrink[r0 + r];
        UNROLL for (int e = 0; e < VE; e++) acc[r * VE + e] = VLOAD_LOCAL(to_row + r * PITCH + e * VW) * f;
      }
      for (int c = 0; c < count; c++) {
        vf w[VE];
        UNROLL for (int e = 0; e < VE; e++) w[e] = VLOAD_LOCAL(tile + c * PITCH + e0 + e * VW);
        UNROLL for (int r = 0; r < MR; r++) {
          float f = p[r * PITCH_S + c];
          UNROLL for (int e = 0; e < VE; e++) acc[r * VE + e] += w[e] * f;
        }
      }
      UNROLL for (int r = 0; r < MR; r++) {
        UNROLL for (int e = 0; e < VE; e++) VSTORE_LOCAL(acc[r * VE + e], to_row + r * PITCH + e * VW);
      }
    }
    BARRIER();
  }

  for (int i = LANE; i < rows * across; i += LANES) {
    int r = i / across, e = i % across, h = group * share + (row0 + r) % share, t = (row0 + r) / share;
    float x = sums[r * PITCH + e];
    if (splits > 1) {
      i64 at = (i64)split * tokens * tq.n[2] + t * tq.n[2] + h;
      GLOBAL float *to_part = (GLOBAL float *)parts + at * (across + 2);
      to_part[e] = x;
      if (e == 0) to_part[across] = top[r], to_part[across + 1] = total[r];
    } else {
      F32_AT(y + ty.off + t * ty.s[1] + h * ty.s[2] + e * ty.s[3]) = total[r] == 0.0f ? 0.0f : x / total[r];
    }
  }
}

/* Groups: (T * H), each adds up what the splits have of one row. */
KERNEL(attention_join)(GLOBAL const u8 *parts, GLOBAL const u8 *sinks, Tens ts, GLOBAL u8 *y, Tens ty, int has,
                       int splits) {
  int heads = ty.n[2], across = ty.n[3], t = GROUP(0) / heads, h = GROUP(0) % heads;
  i64 step = (i64)ty.n[1] * heads * (across + 2);
  GLOBAL const float *mine = (GLOBAL const float *)parts + (i64)GROUP(0) * (across + 2);
  float highest = (has & SINKS) ? READ_F32(sinks + ts.off + h * ts.s[3]) : LOWEST, all = 0.0f;
  highest = MAX(highest, LOWEST);
  if (has & SINKS) all = highest > LOWEST ? 1.0f : 0.0f;
  for (int s = 0; s < splits; s++) {
    float top = mine[s * step + across], higher = MAX(highest, top);
    all = all * EXP(highest - higher) + mine[s * step + across + 1] * EXP(top - higher);
    highest = higher;
  }
  for (int e = LANE; e < across; e += LANES) {
    float x = 0.0f;
    for (int s = 0; s < splits; s++) x += mine[s * step + e] * EXP(mine[s * step + across] - highest);
    F32_AT(y + ty.off + t * ty.s[1] + h * ty.s[2] + e * ty.s[3]) = all == 0.0f ? 0.0f : x / all;
  }
}
