/* rope with a group for each position and each head, for few positions; and with the result written to
 * rows of a cache, as set_rows does. Behind the text of rope.cl, whose arguments it takes.
 *
 * `to` is 0 for a plain result y (1, T, H, D). Otherwise y is the cache (1, 1, N, H * D), of f32 (1) or
 * f16 (2), and row ids[t] is written. Without pairs nothing is rotated, and no position is read.
 */
#ifndef EARLY /* OpenCL launches nothing early */
#define EARLY_LET_GO()
#define EARLY_WAIT()
#endif
#define JOB_(n)                                                                                              \
  GLOBAL const u8 *x##n, Tens tx##n, GLOBAL const u8 *positions##n, Tens tp##n, GLOBAL const u8 *factors##n, \
      Tens tf##n, GLOBAL u8 *y##n, Tens ty##n, GLOBAL const u8 *ids##n, Tens ti##n,                          \
      GLOBAL const i64 *frequencies##n, int pairs##n, int pairing##n, int has_factors##n, float magnitude##n, \
      int to##n, GLOBAL i32 *fault##n, int code##n
#define GIVEN_(n)                                                                                     \
  x##n, tx##n, positions##n, tp##n, factors##n, tf##n, y##n, ty##n, ids##n, ti##n, frequencies##n,    \
      pairs##n, pairing##n, has_factors##n, magnitude##n, to##n, fault##n, code##n

/* Lanes that have a head: a group, or with ROPE a warp. */
#if ROPE
#define TURN_LANE (LANE % 32)
#define TURN_LANES MIN(32, LANES)
#else
#define TURN_LANE LANE
#define TURN_LANES LANES
#endif
FN void turn_head_(JOB_(), int t, int h) {
  int wide = tx.n[3], i = TURN_LANE, d = 2 * pairs + TURN_LANE;
  GLOBAL const u8 *xh = x + tx.off + t * tx.s[1] + h * tx.s[2];
  i64 sx = tx.s[3], sy = ty.s[3], frequency = 0;
  float a = 0.0f, b = 0.0f, plain = 0.0f;
#define FIRST_(i) (pairing == ADJACENT ? 2 * (i) : (i))
#define SECOND_(i) (pairing == ADJACENT ? 2 * (i) + 1 : (i) + pairs)
#define READ_PAIR_()                      \
  if (i < pairs) {                        \
    frequency = frequencies[i];           \
    a = READ_F32(xh + FIRST_(i) * sx);    \
    b = READ_F32(xh + SECOND_(i) * sx);   \
  }
  /* What comes first is under way before the id is looked at. */
  int id = to ? READ_I32(ids + ti.off + t * ti.s[3]) : 0;
  i64 position = pairs ? READ_I32(positions + tp.off + t * tp.s[3]) : 0;
  READ_PAIR_();
  if (d < wide) plain = READ_F32(xh + d * sx);
  if (to && bad_id(id, ty.n[2], fault, code)) return;
  GLOBAL u8 *yh = y + ty.off + (to ? id * ty.s[2] + (i64)h * wide * sy : t * ty.s[1] + h * ty.s[2]);
#define PUT_(d, value)                                                            \
  do {                                                                            \
    if (to == 2)                                                                  \
      *(GLOBAL u16 *)(yh + (d) * sy) = (u16)HALF_OF_FLOAT(value);                 \
    else                                                                          \
      F32_AT(yh + (d) * sy) = (value);                                            \
  } while (0)
  while (i < pairs) {
    if (has_factors) frequency = divided(frequency, READ_F32(factors + tf.off + i * tf.s[3]));
    u64 turns = ((u64)position * (u64)frequency) << 4;
    float angle = angle_of(turns);
    float s = SIN(angle) * magnitude, c = COS(angle) * magnitude;
    PUT_(FIRST_(i), a * c - b * s);
    PUT_(SECOND_(i), a * s + b * c);
    i += TURN_LANES;
    READ_PAIR_();
  }
  while (d < wide) {
    PUT_(d, plain);
    d += TURN_LANES;
    if (d < wide) plain = READ_F32(xh + d * sx);
  }
}

/* Groups: (T, H). */
KERNEL(rope_heads)(JOB_()) {
  turn_head_(GIVEN_(), GROUP(0), GROUP(1));
}

/* Up to three of these at once: groups below `end0`, those below `end1`, and the others. A job reads nothing
 * that another one writes. */
KERNEL(rope_kv_write)(JOB_(0), JOB_(1), JOB_(2), int end0, int end1) {
  EARLY_WAIT(); /* first: the successor may read what is further back */
  EARLY_LET_GO();
  int g = GROUP(0);
  if (g < end0) {
    turn_head_(GIVEN_(0), g / tx0.n[2], g % tx0.n[2]);
  } else if (g < end1) {
    g -= end0;
    turn_head_(GIVEN_(1), g / tx1.n[2], g % tx1.n[2]);
  } else {
    g -= end1;
    turn_head_(GIVEN_(2), g / tx2.n[2], g % tx2.n[2]);
  }
}
