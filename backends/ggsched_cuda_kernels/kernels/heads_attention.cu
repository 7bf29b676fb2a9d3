/* Attention that rotates its queries itself and takes the rows which belong to its own tokens from where they are
 * before they are in the caches: what `heads` and then `attention` would do. Behind rope.cl and attention.h,
 * whose operands it takes.
 *
 * x and q (1, T, H, D), new_k and new_v (1, T, G, D), all but q not rotated; position t becomes row ids[t] of both caches
 * (1, 1, R, G * D), all different; k and v begin at row `first` of them. T is TOKENS.
 *
 * Every group computes what it needs, for no group may wait for one of another cluster: its query heads, and the
 * rows of all tokens for its key head. One group of all writes each row. A group may read a row of a cache that
 * another one is writing; what it has read then counts for nothing, because it takes its own copy, rounded as
 * in the cache. q may be x: only groups of one cluster read a head of it, and it is written when all of them
 * have.
 *
 * With READS_EARLY the predecessor writes nothing of what is read of caches, mask, bounds, positions and ids, and all that is
 * before the predecessor has ended: it waits before it lets go. So this is read, and angles are computed, while the
 * predecessor runs; what it computes is read when it has ended.
 *
 * An id that is bad is reported, and its row is written nowhere and looked at by nobody. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HALF_WIDTH (WIDTH / 2)
#define DOUBLES ((ROWS + 2 * TOKENS) * HALF_WIDTH) /* pairs of numbers to rotate or to copy */
#define TURNS ((DOUBLES + LANES - 1) / LANES)
#define NOWHERE -1
#ifdef W_F32
typedef float Item;
#define ITEM_OF(x) (x)
#else
typedef u16 Item;
#define ITEM_OF(x) ((Item)HALF_OF_FLOAT(x))
#endif

struct NewRows {
  const u8 *x, *new_k, *new_v, *positions, *factors, *ids;
  Tens tx, tnk, tnv, tp, tf, ti;
  const i64 *frequencies;
  int pairs, pairing, has_factors;
  float magnitude;
  u8 *key_cache, *value_cache, *q;
  Tens tkc, tvc, tq;
  int first, n;
  i32 *fault;
  int key_code, value_code;
  float *queries;     /* [ROWS][WIDTH], in local memory */
  Item *keys, *items; /* [TOKENS][WIDTH], in local memory */
  int rows[TOKENS], at[TOKENS]; /* of the new rows: where in the caches, and at which positions */
  float sines[TURNS], cosines[TURNS];

  METHOD int is_row(int id) { return id >= 0 && id < tkc.n[2]; }

  /* All loads of a lane are under way before the first one is waited for. */
  METHOD void prepare(Work here) {
    float factor[TURNS];
    i64 frequency[TURNS];
    int position[TURNS];
    UNROLL for (int j = 0; j < TURNS; j++) {
      int i = LANE + j * LANES, row = i / HALF_WIDTH, pair = i % HALF_WIDTH, t = (row - ROWS) % TOKENS;
      factor[j] = 0.0f, frequency[j] = 0, position[j] = 0;
      if (i >= DOUBLES || row >= ROWS + TOKENS || pair >= pairs) continue;
      position[j] = READ_I32(positions + tp.off + (row < ROWS ? here.token : t) * tp.s[3]);
      frequency[j] = frequencies[pair];
      if (has_factors) factor[j] = READ_F32(factors + tf.off + pair * tf.s[3]);
    }
    UNROLL for (int t = 0; t < TOKENS; t++) {
      int id = READ_I32(ids + ti.off + t * ti.s[3]), place = id - first;
      rows[t] = id;
      at[t] = is_row(id) && place >= 0 && place < n ? place : NOWHERE;
    }
    UNROLL for (int j = 0; j < TURNS; j++) {
      i64 f = has_factors ? divided(frequency[j], factor[j]) : frequency[j];
      float angle = angle_of(((u64)(i64)position[j] * (u64)f) << 4);
      sines[j] = SIN(angle) * magnitude, cosines[j] = COS(angle) * magnitude;
    }
  }
  METHOD void begin(Work here) {
    float a[TURNS], b[TURNS];
    prepare(here);
#if READS_EARLY
    EARLY_WAIT();
#endif
    UNROLL for (int j = 0; j < TURNS; j++) {
      int i = LANE + j * LANES, row = i / HALF_WIDTH, pair = i % HALF_WIDTH, t = (row - ROWS) % TOKENS;
      int of_q = row < ROWS, of_k = row < ROWS + TOKENS, turns = of_k && pair < pairs;
      a[j] = b[j] = 0.0f;
      if (i >= DOUBLES || (of_q && row >= here.rows)) continue;
      if (of_q) t = here.token;
      const u8 *p = of_q   ? x + tx.off + t * tx.s[1] + (here.head + row) * tx.s[2]
                    : of_k ? new_k + tnk.off + t * tnk.s[1] + here.key_head * tnk.s[2]
                           : new_v + tnv.off + t * tnv.s[1] + here.key_head * tnv.s[2];
      i64 sp = of_q ? tx.s[3] : of_k ? tnk.s[3] : tnv.s[3];
      a[j] = READ_F32(p + low_(turns, pair) * sp);
      b[j] = READ_F32(p + high_(turns, pair) * sp);
    }
    int own = 0; /* an array stays in registers if its places are known */
    UNROLL for (int t = 0; t < TOKENS; t++) own = t == here.token ? rows[t] : own;
    if (LANE == 0 && here.split == 0 && here.key_head == 0 && here.part == 0) {
      if (!bad_id(own, tkc.n[2], fault, key_code)) bad_id(own, tvc.n[2], fault, value_code);
    }
    UNROLL for (int j = 0; j < TURNS; j++) {
      int i = LANE + j * LANES, row = i / HALF_WIDTH, pair = i % HALF_WIDTH, t = (row - ROWS) % TOKENS;
      int of_q = row < ROWS, of_k = row < ROWS + TOKENS, turns = of_k && pair < pairs;
      if (i >= DOUBLES || (of_q && row >= here.rows)) continue;
      float low = a[j], high = b[j];
      if (turns) low = a[j] * cosines[j] - b[j] * sines[j], high = a[j] * sines[j] + b[j] * cosines[j];
      int d = low_(turns, pair), e = high_(turns, pair);
      if (of_q) {
        queries[row * WIDTH + d] = low, queries[row * WIDTH + e] = high;
      } else {
        Item *to = (of_k ? keys : items) + t * WIDTH;
        to[d] = ITEM_OF(low), to[e] = ITEM_OF(high);
      }
      if (of_q || here.split || here.part || here.token != t || !is_row(own)) continue;
      i64 step = of_k ? tkc.s[2] : tvc.s[2];
      Item *row_of = (Item *)((of_k ? key_cache + tkc.off : value_cache + tvc.off) + own * step);
      row_of += here.key_head * WIDTH;
      row_of[d] = ITEM_OF(low), row_of[e] = ITEM_OF(high);
    }
    BARRIER();
    cluster_arrive_();
  }
  METHOD int low_(int turns, int pair) { return turns && pairing == HALVES ? pair : 2 * pair; }
  METHOD int high_(int turns, int pair) { return turns && pairing == HALVES ? pair + pairs : 2 * pair + 1; }

  METHOD const float4 *query(Work, int r) { return (const float4 *)(queries + r * WIDTH); }
  METHOD Eight key(Eight read, int position, int chunk) { return newest(keys, read, position, chunk); }
  METHOD Eight value(Eight read, int position, int chunk) { return newest(items, read, position, chunk); }
  METHOD Eight newest(const Item *rows, Eight read, int position, int chunk) {
    UNROLL for (int t = 0; t < TOKENS; t++) {
      if (position == at[t] && chunk < CHUNKS) read = eight_at_((const u8 *)(rows + t * WIDTH + 8 * chunk));
    }
    return read;
  }
  METHOD void end(Work here) {
    for (int i = here.split * LANES + LANE; i < here.rows * (WIDTH / 4); i += SPLITS * LANES) {
      int r = i / (WIDTH / 4), d = i % (WIDTH / 4);
      ((float4 *)(q + tq.off + here.token * tq.s[1] + (here.head + r) * tq.s[2]))[d] = query(here, r)[d];
    }
  }
};

/* First what `rope_heads` takes, with the rotated queries for its result and the code of the keys. */
KERNEL(heads_attention)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *positions, Tens tp, GLOBAL const u8 *factors,
                        Tens tf, GLOBAL u8 *q, Tens tq, GLOBAL const u8 *ids, Tens ti, GLOBAL const i64 *frequencies,
                        int pairs, int pairing, int has_factors, float magnitude, int, GLOBAL i32 *fault,
                        int key_code, GLOBAL const u8 *new_k, Tens tnk, GLOBAL const u8 *new_v, Tens tnv,
                        GLOBAL u8 *key_cache, Tens tkc, GLOBAL u8 *value_cache, Tens tvc, int first, int value_code,
                        GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *mask, Tens tm,
                        GLOBAL const u8 *sinks, Tens ts, GLOBAL const u8 *bounds, Tens tb, GLOBAL u8 *y, Tens ty,
                        int has, float scale, int share, int each) {
  LOCAL_BYTES(local);
  EARLY_LET_GO();
#if !READS_EARLY
  ask_for_rows_(work_(share, each), k, tk, v, tv);
  EARLY_WAIT();
#endif
  float *queries = (float *)local;
  Item *keys = (Item *)(queries + ROWS * WIDTH), *items = keys + TOKENS * WIDTH;
  NewRows source = {x, new_k, new_v, positions, factors, ids, tx, tnk, tnv, tp, tf, ti, frequencies, pairs, pairing,
                    has_factors, magnitude, key_cache, value_cache, q, tkc, tvc, tq, first, tk.n[2], fault, key_code,
                    value_code, queries, keys, items};
  u8 *rest = (u8 *)(items + TOKENS * WIDTH);
  attend_(source, work_(share, each), rest, k, tk, v, tv, mask, tm, sinks, ts, bounds, tb, y, ty, has, scale);
}
#endif
