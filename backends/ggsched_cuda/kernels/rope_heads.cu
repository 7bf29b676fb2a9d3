/* rope with a group for each position and each head, for few positions; and with the result written to
 * rows of a cache, as set_rows does. Behind the text of rope.cl, whose arguments it takes.
 *
 * `to` is 0 for a plain result y (1, T, H, D). Otherwise y is the cache (1, 1, N, H * D), of f32 (1) or
 * f16 (2), and row ids[t] is written. Groups: (T, H).
 */
KERNEL(rope_heads)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *positions, Tens tp, GLOBAL const u8 *factors,
                   Tens tf, GLOBAL u8 *y, Tens ty, GLOBAL const u8 *ids, Tens ti,
                   GLOBAL const i64 *frequencies, int pairs, int pairing, int has_factors, float magnitude,
                   int to, GLOBAL i32 *fault, int code) {
  int t = GROUP(0), h = GROUP(1), wide = tx.n[3];
  GLOBAL const u8 *xh = x + tx.off + t * tx.s[1] + h * tx.s[2];
  i64 sx = tx.s[3], sy = ty.s[3];
  GLOBAL u8 *yh = y + ty.off;
  if (to) {
    int id = READ_I32(ids + ti.off + t * ti.s[3]);
    if (bad_id(id, ty.n[2], fault, code)) return;
    yh += id * ty.s[2] + (i64)h * wide * sy;
  } else {
    yh += t * ty.s[1] + h * ty.s[2];
  }
#define PUT_(d, value)                                                            \
  do {                                                                            \
    if (to == 2)                                                                  \
      *(GLOBAL u16 *)(yh + (d) * sy) = (u16)HALF_OF_FLOAT(value);                 \
    else                                                                          \
      F32_AT(yh + (d) * sy) = (value);                                            \
  } while (0)
  i64 position = READ_I32(positions + tp.off + t * tp.s[3]);
  for (int i = LANE; i < pairs; i += LANES) {
    i64 frequency = frequencies[i];
    if (has_factors) frequency = divided(frequency, READ_F32(factors + tf.off + i * tf.s[3]));
    u64 turns = ((u64)position * (u64)frequency) << 4;
    float angle = (float)(i32)(turns >> 32) * 1.4629180792671596e-9f; /* 2 pi / 2^32 */
    float s = SIN(angle) * magnitude, c = COS(angle) * magnitude;
    int i0 = pairing == ADJACENT ? 2 * i : i, i1 = pairing == ADJACENT ? 2 * i + 1 : i + pairs;
    float a = READ_F32(xh + i0 * sx), b = READ_F32(xh + i1 * sx);
    PUT_(i0, a * c - b * s);
    PUT_(i1, a * s + b * c);
  }
  for (int d = 2 * pairs + LANE; d < wide; d += LANES) PUT_(d, READ_F32(xh + d * sx));
}
