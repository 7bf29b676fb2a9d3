/* linear_attention of several tokens, without a barrier: what recurrent.cl says, by warps that know of no other.
 * Behind the text of recurrent.cl.
 *
 * SHARE neighbouring lanes keep a column of M in registers, KEPT elements each. With M as it was before a token,
 *
 *   y = q M' = fade q M + (q k) u,   M' = fade M + k (x) u,   u = beta (v - fade k M)
 *
 * so that q M, k M and q k are summed over the lanes at the same time, and the next token's operands are under way
 * meanwhile. Rows of q and k lie without gaps at multiples of 16 bytes; KEPT is a multiple of 4.
 * Groups: (S * H, P / (LANES / SHARE)).
 */
#define SHARE 8

FN float shared_sum_(float x) {
  UNROLL for (int step = SHARE / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

struct Token {
  float k[KEPT], q[KEPT], v, fade, beta;
  int slot, begins;
};

FN void load_vector_(float *to, const u8 *from) {
  UNROLL for (int i = 0; i < KEPT; i += 4) {
    float4 four = *(const float4 *)(from + 4 * i);
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}

KERNEL(delta_scan)(GLOBAL const u8 *state, Tens ts, GLOBAL const u8 *q, Tens tq, GLOBAL const u8 *k, Tens tk,
                   GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *decay, Tens td, GLOBAL const u8 *slots, Tens tl,
                   GLOBAL const u8 *positions, Tens tp, GLOBAL const u8 *beta, Tens tb, GLOBAL u8 *y, Tens ty,
                   GLOBAL u8 *after, Tens ta, GLOBAL u8 *copied, Tens tc, int tiled, float scale, GLOBAL i32 *fault,
                   int code) {
  int heads = ts.n[1], tokens = tq.n[1], groups = tq.n[2];
  int slot = GROUP(0) / heads, head = GROUP(0) % heads;
  int group = tiled ? head % groups : head / (heads / groups);
  int first = LANE % SHARE * KEPT, column = GROUP(1) * (LANES / SHARE) + LANE / SHARE, is_live = column < ts.n[3];
  i64 at = slot * ts.s[0] + head * ts.s[1] + first * ts.s[2] + column * ts.s[3];
  float m[KEPT];
  UNROLL for (int i = 0; i < KEPT; i++) m[i] = is_live ? READ_F32(state + ts.off + at + i * ts.s[2]) : 0.0f;
  k += tk.off + group * tk.s[2] + 4 * first, q += tq.off + group * tq.s[2] + 4 * first;
  v += tv.off + head * tv.s[2] + column * tv.s[3], y += ty.off + head * ty.s[2] + column * ty.s[3];
  decay += td.off + head * td.s[3], beta += tb.off + head * tb.s[3];
  Token now, next;
#define LOAD_TOKEN(to, t)                                                 \
  load_vector_(to.k, k + (t) * tk.s[1]);                                  \
  load_vector_(to.q, q + (t) * tq.s[1]);                                  \
  to.v = is_live ? READ_F32(v + (t) * tv.s[1]) : 0.0f;                    \
  to.fade = READ_F32(decay + (t) * td.s[2]);                              \
  to.beta = BETA ? READ_F32(beta + (t) * tb.s[2]) : 1.0f;                 \
  to.slot = SLOT_AT(t), to.begins = POSITION_AT(t) == 0
  LOAD_TOKEN(now, 0);
  for (int t = 0; t < tokens; t++) {
    LOAD_TOKEN(next, MIN(t + 1, tokens - 1));
    if (!bad_id(now.slot, ts.n[0], fault, code) && now.slot == slot) {
      float fade = EXP(now.fade), km[4] = {0}, qm[4] = {0}, qk[4] = {0};
      if (now.begins) {
        UNROLL for (int i = 0; i < KEPT; i++) m[i] = 0.0f;
      }
      UNROLL for (int i = 0; i < KEPT; i++) {
        if (BETA) km[i % 4] += now.k[i] * m[i];
        qm[i % 4] += now.q[i] * m[i];
        qk[i % 4] += now.q[i] * now.k[i];
      }
      float sum = shared_sum_(qm[0] + qm[1] + (qm[2] + qm[3])), own = shared_sum_(qk[0] + qk[1] + (qk[2] + qk[3]));
      float u = now.v;
      if (BETA) u = (u - fade * shared_sum_(km[0] + km[1] + (km[2] + km[3]))) * now.beta;
      UNROLL for (int i = 0; i < KEPT; i++) m[i] = m[i] * fade + u * now.k[i];
      if (is_live && LANE % SHARE == 0) F32_AT(y + t * ty.s[1]) = (fade * sum + own * u) * scale;
    }
    now = next;
  }
  at = slot * ta.s[0] + head * ta.s[1] + first * ta.s[2] + column * ta.s[3];
  UNROLL for (int i = 0; i < KEPT; i++) {
    if (is_live) {
      F32_AT(after + ta.off + at + i * ta.s[2]) = m[i];
#if COPIED
      F32_AT(copied + tc.off + at + i * ta.s[2]) = m[i];
#endif
    }
  }
}
