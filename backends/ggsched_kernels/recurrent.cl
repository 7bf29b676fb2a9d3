/* Recurrences over the tokens of sequences, each of which has a slot with its state.
 *
 * Which tokens are of a slot comes with the data, in the order of the tokens; a token at position 0 begins a
 * sequence, and what was in the slot is not used. A slot out of range touches no memory: the stream's `fault` reports it.
 */
#define SLOT_AT(t) READ_I32(slots + tl.off + (t) * tl.s[3])
#define POSITION_AT(t) READ_I32(positions + tp.off + (t) * tp.s[3])

#ifdef TAPS
/* y[t] = sum over taps of w * the last rows of the slot; rows from T on are the states afterwards.
 *
 * state (1, S, TAPS - 1, C), x (1, 1, T, C), w (1, 1, C, TAPS), y (1, 1, T + S * (TAPS - 1), C).
 * Groups: (rows of y, C / span). */
KERNEL(short_conv)(GLOBAL const u8 *state, Tens ts, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *w, Tens tw,
                   GLOBAL const u8 *slots, Tens tl, GLOBAL const u8 *positions, Tens tp, GLOBAL u8 *y, Tens ty,
                   int span, GLOBAL i32 *fault, int code) {
  int from = PART * span, to = MIN(from + span, ty.n[3]), tokens = tx.n[2], row = ROW;
  int kept = TAPS - 1, is_state = row >= tokens, bad = 0;
  int last = is_state ? tokens - 1 : row, slot = 0, count = 0;
  GLOBAL const u8 *source[TAPS]; /* of the row that many tokens ago; 0 for zeros */
  GLOBAL u8 *yr = y + row_offset(ty, row);
  if (is_state) {
    slot = (row - tokens) / kept;
  } else {
    slot = SLOT_AT(row);
    bad = bad_id(slot, ts.n[1], fault, code);
  }
  if (bad) {
    for (int c = from + LANE; c < to; c += LANES) F32_AT(yr + c * ty.s[3]) = 0.0f;
    return;
  }
  for (int d = 0; d < TAPS; d++) source[d] = 0;
  for (int t = last; t >= 0 && count < TAPS; t--) {
    if (SLOT_AT(t) != slot) continue;
    source[count++] = x + tx.off + t * tx.s[2];
    if (POSITION_AT(t) == 0) count = TAPS;
  }
  for (int d = count; d < TAPS && d - count < kept; d++)
    source[d] = state + ts.off + slot * ts.s[1] + (kept - 1 - (d - count)) * ts.s[2];
  if (is_state) {
    /* Only the row that moves here is used, but private memory is best indexed by constants. */
    int ago = kept - 1 - (row - tokens) % kept;
    GLOBAL const u8 *moved = 0;
    for (int d = 0; d < TAPS; d++) moved = d == ago ? source[d] : moved;
    i64 step = ago < count ? tx.s[3] : ts.s[3];
    for (int c = from + LANE; c < to; c += LANES)
      F32_AT(yr + c * ty.s[3]) = moved ? READ_F32(moved + c * step) : 0.0f;
    return;
  }
  for (int c = from + LANE; c < to; c += LANES) {
    float sum = 0.0f;
    UNROLL for (int d = TAPS - 1; d >= 0; d--) {
      i64 step = d < count ? tx.s[3] : ts.s[3];
      if (source[d]) sum += READ_F32(source[d] + c * step) * READ_F32(w + tw.off + c * tw.s[2] + (kept - d) * tw.s[3]);
    }
    F32_AT(yr + c * ty.s[3]) = sum;
  }
}
#endif

#ifdef OWN
/* y[t, h] = scale * q[t] M, with M = exp(decay) M + k[t] (x) u and u = v[t], or beta (v[t] - k[t] M) with BETA.
 *
 * state and after (S, H, N, P), q and k (1, T, G, N), v and y (1, T, H, P), decay and beta (1, 1, T, H).
 * With COPIED the states afterwards go there too, which may be where they were.
 * Groups: (S * H, P / columns). A lane keeps OWN elements of a column of M, or of VW columns where VECTORS; COLS lanes
 * lie side by side, and LANES / COLS lanes share a column. */
#if VECTORS
typedef vf Column;
#define WIDE VW
#define COLUMN_AT(p) VLOAD(p)
#define COLUMN_TO(value, p) VSTORE(value, p)
#define NO_COLUMN VSPLAT(0.0f)
#else
typedef float Column;
#define WIDE 1
#define COLUMN_AT(p) READ_F32(p)
#define COLUMN_TO(value, p) (F32_AT(p) = (value))
#define NO_COLUMN 0.0f
#endif

/* Sum of what all lanes of column `c` of the group have put to scratch. */
#define OVER_LANES(sum, c)                                                               \
  UNROLL for (int i_ = 1; i_ < LANES / COLS; i_++) sum = sum + scratch[i_ * COLS + (c)]

KERNEL(linear_attention)(GLOBAL const u8 *state, Tens ts, GLOBAL const u8 *q, Tens tq, GLOBAL const u8 *k, Tens tk,
                         GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *decay, Tens td, GLOBAL const u8 *slots, Tens tl,
                         GLOBAL const u8 *positions, Tens tp, GLOBAL const u8 *beta, Tens tb, GLOBAL u8 *y, Tens ty,
                         GLOBAL u8 *after, Tens ta, GLOBAL u8 *copied, Tens tc, int tiled, float scale, GLOBAL i32 *fault, int code) {
  LOCAL Column scratch[LANES];
  int heads = ts.n[1], width = ts.n[2], across = ts.n[3], tokens = tq.n[1], groups = tq.n[2];
  int slot = GROUP(0) / heads, head = GROUP(0) % heads;
  int group = tiled ? head % groups : head / (heads / groups);
  int left = GROUP(1) * COLS * WIDE, columns = MIN(COLS, (across - left) / WIDE);
  int column = left + LANE % COLS * WIDE, is_live = LANE % COLS < columns;
#if EVEN
  int first = LANE / COLS * OWN, own = OWN;
#else
  int first = LANE / COLS * OWN, own = MAX(0, MIN(OWN, width - first));
#endif
  i64 at = slot * ts.s[0] + head * ts.s[1] + first * ts.s[2] + column * ts.s[3] + ts.off;
  Column m[OWN];
  UNROLL for (int i = 0; i < OWN; i++)
    m[i] = is_live && i < own ? COLUMN_AT(state + at + i * ts.s[2]) : NO_COLUMN;
  for (int t = 0; t < tokens; t++) {
    int id = SLOT_AT(t);
    if (bad_id(id, ts.n[0], fault, code) || id != slot) continue;
    GLOBAL const u8 *kr = k + tk.off + t * tk.s[1] + group * tk.s[2] + first * tk.s[3];
    GLOBAL const u8 *qr = q + tq.off + t * tq.s[1] + group * tq.s[2] + first * tq.s[3];
    float fade = EXP(READ_F32(decay + td.off + t * td.s[2] + head * td.s[3]));
    Column u = is_live ? COLUMN_AT(v + tv.off + t * tv.s[1] + head * tv.s[2] + column * tv.s[3]) : NO_COLUMN;
    Column sum = NO_COLUMN;
    if (POSITION_AT(t) == 0) {
      UNROLL for (int i = 0; i < OWN; i++) m[i] = NO_COLUMN;
    } else {
      UNROLL for (int i = 0; i < OWN; i++) m[i] = m[i] * fade;
    }
#if BETA
    UNROLL for (int i = 0; i < OWN; i++) {
      if (i < own) sum = sum + m[i] * READ_F32(kr + i * tk.s[3]);
    }
    scratch[LANE] = sum;
    BARRIER();
    sum = scratch[LANE % COLS];
    OVER_LANES(sum, LANE % COLS);
    u = (u - sum) * READ_F32(beta + tb.off + t * tb.s[2] + head * tb.s[3]);
    sum = NO_COLUMN;
    BARRIER();
#endif
    UNROLL for (int i = 0; i < OWN; i++) {
      if (i < own) {
        m[i] = m[i] + u * READ_F32(kr + i * tk.s[3]);
        sum = sum + m[i] * READ_F32(qr + i * tq.s[3]);
      }
    }
    scratch[LANE] = sum;
    BARRIER();
    /* A loop, not a condition: PoCL's compiler loses one that follows a barrier within a loop. */
    for (int c = LANE; c < columns; c += LANES) {
      sum = scratch[c];
      OVER_LANES(sum, c);
      COLUMN_TO(sum * scale, y + ty.off + t * ty.s[1] + head * ty.s[2] + (c * WIDE + left) * ty.s[3]);
    }
    BARRIER();
  }
  at = slot * ta.s[0] + head * ta.s[1] + first * ta.s[2] + column * ta.s[3];
  UNROLL for (int i = 0; i < OWN; i++) {
    if (is_live && i < own) {
      COLUMN_TO(m[i], after + ta.off + at + i * ta.s[2]);
#if COPIED
      COLUMN_TO(m[i], copied + tc.off + at + i * ta.s[2]);
#endif
    }
  }
}
#endif
