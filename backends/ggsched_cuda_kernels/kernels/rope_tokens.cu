/* Rotations of all heads of a token, and copies into rows of caches, for many tokens: what up to three of `rope_heads`
 * would do. Behind the text of rope.cl, whose arguments it takes, and `to` of rope_kv_write.cl: 0 for a plain
 * result y (1, T, H, D), 1 for rows of f32 of a cache (1, 1, N, H * D), 2 for rows of f16.
 *
 * A group takes a token. Its lanes compute the sine and cosine of each pair once, while units of four pairs are under
 * way: eight elements that lie side by side, or, where the pairing is by halves, four and four. Elements behind
 * the pairs are copied. UNITS_n is how many a lane has of job n. A job reads nothing that another one writes; y
 * may be x.
 *
 * Groups: T. */
#define MAX_PAIRS 128
#define TOKENS_JOB_(n)                                                                                       \
  GLOBAL const u8 *x##n, Tens tx##n, GLOBAL const u8 *positions##n, Tens tp##n, GLOBAL const u8 *factors##n, \
      Tens tf##n, GLOBAL u8 *y##n, Tens ty##n, GLOBAL const u8 *ids##n, Tens ti##n,                          \
      GLOBAL const i64 *frequencies##n, int pairs##n, int pairing##n, int has_factors##n, float magnitude##n, \
      int to##n, GLOBAL i32 *fault##n, int code##n

FN void angles_(LOCAL_PTR float2 *table, GLOBAL const u8 *positions, const Tens tp, GLOBAL const u8 *factors,
                const Tens tf, GLOBAL const i64 *frequencies, int pairs, int has_factors, float magnitude, int t) {
  for (int i = LANE; i < pairs; i += LANES) {
    i64 position = READ_I32(positions + tp.off + t * tp.s[3]);
    const int pairing = ADJACENT;
    TURN(i, s, c);
    table[i] = make_float2(c, s);
  }
}

/* Where the four elements of unit u begin, and the four behind them. */
FN int first_of_(int u, int pairs, int pairing) { return 4 * u < pairs && pairing == HALVES ? 4 * u : 8 * u; }
FN int second_of_(int u, int pairs, int pairing) { return 4 * u < pairs && pairing == HALVES ? 4 * u + pairs : 8 * u + 4; }

template <int UNITS>
FN void take_units_(float4 *a, float4 *b, GLOBAL const u8 *x, const Tens tx, int pairs, int pairing, int t) {
  int each = tx.n[3] / 8, all = tx.n[2] * each;
  UNROLL for (int k = 0; k < UNITS; k++) {
    int i = LANE + k * LANES, u = i % each;
    a[k] = b[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= all) continue;
    GLOBAL const u8 *head = x + tx.off + t * tx.s[1] + i / each * tx.s[2];
    a[k] = *(GLOBAL const float4 *)(head + 4 * first_of_(u, pairs, pairing));
    b[k] = *(GLOBAL const float4 *)(head + 4 * second_of_(u, pairs, pairing));
  }
}

FN void put_four_(GLOBAL u8 *row, int at, int to, float4 v) {
  if (to != 2) {
    *(GLOBAL float4 *)(row + 4 * at) = v;
    return;
  }
  u32 low = (u32)HALF_OF_FLOAT(v.x) | (u32)HALF_OF_FLOAT(v.y) << 16;
  u32 high = (u32)HALF_OF_FLOAT(v.z) | (u32)HALF_OF_FLOAT(v.w) << 16;
  *(GLOBAL uint2 *)(row + 2 * at) = make_uint2(low, high);
}

template <int UNITS>
FN void put_units_(const float4 *a, const float4 *b, LOCAL_PTR const float2 *turns, const Tens tx, GLOBAL u8 *y,
                   const Tens ty, GLOBAL const u8 *ids, const Tens ti, int pairs, int pairing, int to,
                   GLOBAL i32 *fault, int code, int t) {
  int each = tx.n[3] / 8, all = tx.n[2] * each, id = 0;
  if (to) {
    id = READ_I32(ids + ti.off + t * ti.s[3]);
    if (bad_id(id, ty.n[2], fault, code)) return;
  }
  UNROLL for (int k = 0; k < UNITS; k++) {
    int i = LANE + k * LANES, h = i / each, u = i % each;
    if (i >= all) continue;
    float4 v = a[k], w = b[k];
    if (4 * u < pairs) {
      float2 p[4] = {turns[4 * u], turns[4 * u + 1], turns[4 * u + 2], turns[4 * u + 3]};
      if (pairing == HALVES) {
        float4 low = v, high = w;
        v = make_float4(low.x * p[0].x - high.x * p[0].y, low.y * p[1].x - high.y * p[1].y,
                        low.z * p[2].x - high.z * p[2].y, low.w * p[3].x - high.w * p[3].y);
        w = make_float4(low.x * p[0].y + high.x * p[0].x, low.y * p[1].y + high.y * p[1].x,
                        low.z * p[2].y + high.z * p[2].x, low.w * p[3].y + high.w * p[3].x);
      } else {
        v = make_float4(v.x * p[0].x - v.y * p[0].y, v.x * p[0].y + v.y * p[0].x,
                        v.z * p[1].x - v.w * p[1].y, v.z * p[1].y + v.w * p[1].x);
        w = make_float4(w.x * p[2].x - w.y * p[2].y, w.x * p[2].y + w.y * p[2].x,
                        w.z * p[3].x - w.w * p[3].y, w.z * p[3].y + w.w * p[3].x);
      }
    }
    GLOBAL u8 *row = y + ty.off;
    row += to ? id * ty.s[2] + (i64)h * tx.n[3] * (to == 2 ? 2 : 4) : t * ty.s[1] + h * ty.s[2];
    put_four_(row, first_of_(u, pairs, pairing), to, v);
    put_four_(row, second_of_(u, pairs, pairing), to, w);
  }
}

#define ANGLES_(n) \
  angles_(turns[n], positions##n, tp##n, factors##n, tf##n, frequencies##n, pairs##n, has_factors##n, magnitude##n, t)
#define TAKE_(n) take_units_<UNITS_##n>(a##n, b##n, x##n, tx##n, pairs##n, pairing##n, t)
#define PUT_UNITS_(n)                                                                                             \
  put_units_<UNITS_##n>(a##n, b##n, turns[n], tx##n, y##n, ty##n, ids##n, ti##n, pairs##n, pairing##n, to##n, fault##n, \
                        code##n, t)

KERNEL(rope_tokens)(TOKENS_JOB_(0), TOKENS_JOB_(1), TOKENS_JOB_(2)) {
  LOCAL float2 turns[3][MAX_PAIRS];
  float4 a0[UNITS_0], b0[UNITS_0], a1[UNITS_1], b1[UNITS_1], a2[UNITS_2], b2[UNITS_2];
  int t = GROUP(0);
  EARLY_WAIT(); /* first: the successor may read what is further back */
  EARLY_LET_GO();
  TAKE_(0);
  TAKE_(1);
#if JOBS > 2
  TAKE_(2);
#endif
  ANGLES_(0);
  ANGLES_(1);
#if JOBS > 2
  ANGLES_(2);
#endif
  BARRIER();
  PUT_UNITS_(0);
  PUT_UNITS_(1);
#if JOBS > 2
  PUT_UNITS_(2);
#endif
}
