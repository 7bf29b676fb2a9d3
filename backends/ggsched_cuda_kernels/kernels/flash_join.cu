/* Adds up what the shares of flash_attention have of each row: (splits, T * H, ACROSS + 2), with the largest logit and
 * the sum at the end. With HALVES besides the rows as bf16, for the product that follows.
 *
 * A warp takes a row (a head of a token), a lane of it pairs of elements. Groups: LANES / 32 rows each. */
#define LOWEST FLOAT_OF_BITS(0xff7fffffu)
#define SINKS 2

KERNEL(flash_join)(GLOBAL const u8 *parts, GLOBAL const u8 *sinks, Tens ts, GLOBAL u8 *y, Tens ty, int has, int splits,
                   GLOBAL u8 *halves) {
  int heads = ty.n[2], rows = ty.n[1] * heads, row = GROUP(0) * (LANES / 32) + LANE / 32, lane = LANE % 32;
  if (row >= rows) return;
  int t = row / heads, h = row % heads;
  i64 step = (i64)rows * (ACROSS + 2);
  const float *mine = (const float *)parts + (i64)row * (ACROSS + 2);
  float highest = (has & SINKS) ? MAX(READ_F32(sinks + ts.off + h * ts.s[3]), LOWEST) : LOWEST;
  float all = (has & SINKS) && highest > LOWEST ? 1.0f : 0.0f;
  float2 x[(ACROSS + 63) / 64];
  UNROLL for (int k = 0; k < (ACROSS + 63) / 64; k++) x[k] = make_float2(0.0f, 0.0f);
  for (int s = 0; s < splits; s++) {
    const float *from = mine + s * step;
    float2 end = *(const float2 *)(from + ACROSS);
    float higher = MAX(highest, end.x), kept = EXP(highest - higher), by = EXP(end.x - higher);
    all = all * kept + end.y * by;
    highest = higher;
    UNROLL for (int k = 0; k < (ACROSS + 63) / 64; k++) {
      int e = 64 * k + 2 * lane;
      if (e >= ACROSS) continue;
      float2 some = *(const float2 *)(from + e);
      x[k].x = x[k].x * kept + some.x * by, x[k].y = x[k].y * kept + some.y * by;
    }
  }
  u8 *place = y + ty.off + t * ty.s[1] + h * ty.s[2];
  UNROLL for (int k = 0; k < (ACROSS + 63) / 64; k++) {
    int e = 64 * k + 2 * lane;
    if (e >= ACROSS) continue;
    float2 made = make_float2(all > 0.0f ? x[k].x / all : 0.0f, all > 0.0f ? x[k].y / all : 0.0f);
    *(float2 *)(place + 4 * e) = made;
#if HALVES
    *(u32 *)(halves + 2 * ((i64)row * ACROSS + e)) = bf16_pair(made.x, made.y);
#endif
  }
}
