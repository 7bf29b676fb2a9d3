/* y = shares * v, shares = softmax(q k * scale + mask), for one token, on devices with warps. Arguments and parts are those of
 * attention_blocks; SHARE is its `share`, rounded up to a power of two, WIDTH and ACROSS are the widths of keys and values.
 *
 * A group has one head of keys with its queries, KEYS rows at a time. KEY_LANES lanes share a key, which they multiply with all
 * queries; a warp makes shares of a query's logits; V_LANES lanes share a row of values, each adding up a piece of 16
 * bytes for all queries. What lanes of one piece have is added up at the end.
 *
 * With ROPE the group first rotates its queries and writes its rows of keys and values into caches, a warp for each head.
 */
#define MASK 1
#define SINKS 2
#define BOUNDS 4
#define LOWEST FLOAT_OF_BITS(0xff7fffffu)
#define KEYS 256
#define WARPS (LANES / WARP)
#define KEY_LANES 4
#define CHUNKS (WIDTH / ELEMS_PER_CHUNK / KEY_LANES) /* of a key for a lane */
#define V_LANES (ACROSS / ELEMS_PER_CHUNK)
#define TEAMS (LANES / V_LANES)
#define DEEP 4 /* rows of values that a lane has under way */

#if ROPE
#define TURNED_JOBS , JOB_(0), JOB_(1), JOB_(2), int heads0, int heads1, int heads2
#else
#define TURNED_JOBS
#endif

/* Groups: (1, G, splits). */
KERNEL(attention_row)(GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *q, Tens tq,
                      GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *sinks, Tens ts, GLOBAL const u8 *bounds,
                      Tens tb, GLOBAL u8 *y, Tens ty, GLOBAL u8 *parts, int has, float scale, float cap, int share,
                      int splits TURNED_JOBS) {
  LOCAL float queries[SHARE * WIDTH];
  LOCAL float logits[SHARE * KEYS];
  LOCAL float sums[WARPS * SHARE * ACROSS];
  LOCAL float scratch[LANES];
  LOCAL float top[SHARE];
  LOCAL float total[SHARE];
  LOCAL float shrink[SHARE];
  int group = GROUP(1), split = GROUP(2), from = 0, to = tk.n[1], t = LANE % KEY_LANES;
#if ROPE
  for (int i = WARP_INDEX; i < heads0 + heads1 + heads2; i += WARPS) {
    if (i < heads0)
      turn_head_(GIVEN_(0), 0, GROUP(1) * heads0 + i);
    else if (i < heads0 + heads1)
      turn_head_(GIVEN_(1), 0, GROUP(1) * heads1 + i - heads0);
    else
      turn_head_(GIVEN_(2), 0, GROUP(1) * heads2 + i - heads0 - heads1);
  }
  BARRIER();
#endif
  if (has & BOUNDS) {
    from = MAX(0, READ_I32(bounds + tb.off));
    to = MIN(to, READ_I32(bounds + tb.off + tb.s[3]));
  }
  if (splits > 1) {
    int each = (MAX(0, to - from) + splits - 1) / splits;
    from += split * each;
    to = MIN(to, from + each);
  }
  for (int r = LANE; r < SHARE; r += LANES) {
    int is_there = (has & SINKS) && splits == 1 && r < share;
    float sink = is_there ? READ_F32(sinks + ts.off + (group * share + r) * ts.s[3]) : LOWEST;
    top[r] = MAX(sink, LOWEST);
    total[r] = sink > LOWEST ? 1.0f : 0.0f;
  }
  for (int i = LANE; i < SHARE * WIDTH; i += LANES) {
    int r = i / WIDTH, d = i % WIDTH;
    queries[i] = r < share ? READ_F32(q + tq.off + (group * share + r) * tq.s[2] + d * tq.s[3]) : 0.0f;
  }
  float acc[SHARE * ELEMS_PER_CHUNK];
  UNROLL for (int i = 0; i < SHARE * ELEMS_PER_CHUNK; i++) acc[i] = 0.0f;
  BARRIER();

  for (int n0 = from; n0 < to; n0 += KEYS) {
    int count = MIN(KEYS, to - n0);
    GLOBAL const u8 *keys = k + tk.off + group * tk.s[2] + n0 * tk.s[1];
    GLOBAL const u8 *values = v + tv.off + group * tv.s[2] + n0 * tv.s[1] + LANE % V_LANES * 16;
    for (int c0 = 0; c0 < count; c0 += LANES / KEY_LANES) {
      int c = c0 + LANE / KEY_LANES;
      GLOBAL const u8 *row = keys + MIN(c, count - 1) * tk.s[1];
      u4 raw[CHUNKS];
      float z[SHARE];
      UNROLL for (int i = 0; i < CHUNKS; i++) raw[i] = LOAD16(row + (i * KEY_LANES + t) * 16);
      UNROLL for (int r = 0; r < SHARE; r++) z[r] = 0.0f;
      UNROLL for (int i = 0; i < CHUNKS; i++) {
        float x[ELEMS_PER_CHUNK];
        unpack(x, raw[i]);
        UNROLL for (int r = 0; r < SHARE; r++) {
          LOCAL_PTR const float *a = queries + r * WIDTH + (i * KEY_LANES + t) * ELEMS_PER_CHUNK;
          UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) z[r] += a[j] * x[j];
        }
      }
      ADD_OVER_LANES(z, SHARE, KEY_LANES, scratch);
      UNROLL for (int j = 0; j < (SHARE > KEY_LANES ? SHARE / KEY_LANES : 1); j++) {
        int r = t * SHARE / KEY_LANES + j;
        float logit = z[j] * scale;
        if (c >= count) break;
        if (cap > 0.0f) logit = TANH(logit / cap) * cap;
        if ((has & MASK) && r < share) logit += READ_F32(mask + tm.off + (group * share + r) * tm.s[1] + (n0 + c) * tm.s[3]);
        logits[r * KEYS + c] = logit;
      }
    }
    BARRIER();
    for (int r0 = 0; r0 < SHARE; r0 += WARPS) {
      int r = MIN(r0 + WARP_INDEX, SHARE - 1), is_own = r0 + WARP_INDEX < SHARE;
      LOCAL_PTR float *x = logits + r * KEYS;
      float before = top[r], most = before, sum = 0.0f;
      for (int c = WARP_LANE; c < count; c += WARP) most = MAX(most, x[c]);
      UNROLL_MEETING for (int bit = WARP / 2; bit > 0; bit /= 2) {
        float other = EXCHANGED(most, bit, scratch);
        most = MAX(most, other);
      }
      for (int c = WARP_LANE; c < count && is_own; c += WARP) {
        float e = EXP(x[c] - most);
        sum += e;
        x[c] = e;
      }
      UNROLL_MEETING for (int bit = WARP / 2; bit > 0; bit /= 2) sum += EXCHANGED(sum, bit, scratch);
      if (is_own && WARP_LANE == 0) {
        shrink[r] = EXP(before - most);
        total[r] = total[r] * shrink[r] + sum;
        top[r] = most;
      }
    }
    BARRIER();
    UNROLL for (int r = 0; r < SHARE; r++) {
      float f = shrink[r];
      UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) acc[r * ELEMS_PER_CHUNK + j] *= f;
    }
    for (int c0 = LANE / V_LANES; c0 < count; c0 += TEAMS * DEEP) {
      u4 raw[DEEP];
      UNROLL for (int d = 0; d < DEEP; d++) raw[d] = LOAD16(values + MIN(c0 + d * TEAMS, count - 1) * tv.s[1]);
      UNROLL for (int d = 0; d < DEEP; d++) {
        int c = c0 + d * TEAMS;
        float x[ELEMS_PER_CHUNK];
        if (c >= count) break;
        unpack(x, raw[d]);
        UNROLL for (int r = 0; r < SHARE; r++) {
          float f = logits[r * KEYS + c];
          UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) acc[r * ELEMS_PER_CHUNK + j] += f * x[j];
        }
      }
    }
    BARRIER();
  }

  UNROLL_MEETING for (int i = 0; i < SHARE * ELEMS_PER_CHUNK; i++) {
    for (int bit = V_LANES; bit < WARP; bit *= 2) acc[i] += EXCHANGED(acc[i], bit, scratch);
  }
  if (WARP_LANE < V_LANES) {
    UNROLL for (int i = 0; i < SHARE * ELEMS_PER_CHUNK; i++)
      sums[(WARP_INDEX * SHARE + i / ELEMS_PER_CHUNK) * ACROSS + WARP_LANE * ELEMS_PER_CHUNK + i % ELEMS_PER_CHUNK] = acc[i];
  }
  BARRIER();
  for (int i = LANE; i < share * ACROSS; i += LANES) {
    int r = i / ACROSS, e = i % ACROSS, h = group * share + r;
    float x = 0.0f;
    for (int w = 0; w < WARPS; w++) x += sums[w * SHARE * ACROSS + i];
    if (splits > 1) {
      GLOBAL float *to_part = (GLOBAL float *)parts + ((i64)split * tq.n[2] + h) * (ACROSS + 2);
      to_part[e] = x;
      if (e == 0) to_part[ACROSS] = top[r], to_part[ACROSS + 1] = total[r];
    } else {
      F32_AT(y + ty.off + h * ty.s[2] + e * ty.s[3]) = total[r] == 0.0f ? 0.0f : x / total[r];
    }
  }
}
