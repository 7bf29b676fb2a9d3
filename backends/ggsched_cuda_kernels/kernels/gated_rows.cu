/* y = silu(g) * u, element by element, of many rows that lie along the last axis without gaps, at multiples of 16 bytes;
 * with HALVES 1 besides the same as bf16, for the product that follows, with 2 as f16 with a scale for each row, of which a
 * group then has all. y may be g or u.
 *
 * NARROW: g and u are bf16, of rows that begin where those of f32 would, and a group has a whole row, which it has read before
 * it writes.
 *
 * Groups: parts of 4 * UNITS * LANES elements of a row; rows. */
#if NARROW
FN float4 four_of_bf16(uint2 pairs) {
  return make_float4(FLOAT_OF_BITS(pairs.x << 16), FLOAT_OF_BITS(pairs.x & 0xffff0000u), FLOAT_OF_BITS(pairs.y << 16),
                     FLOAT_OF_BITS(pairs.y & 0xffff0000u));
}
#endif
#undef KERNEL_BOUNDS
#define KERNEL_BOUNDS __launch_bounds__(LANES)
KERNEL(gated_rows)(GLOBAL const u8 *g, Tens tg, GLOBAL const u8 *u, Tens tu, GLOBAL u8 *y, Tens ty, GLOBAL u8 *halves) {
  int n = ty.n[3], row = GROUP(1), first = GROUP(0) * UNITS * LANES + LANE;
#if NARROW
  const uint2 *gr = (const uint2 *)(g + row_offset(tg, row)), *ur = (const uint2 *)(u + row_offset(tu, row));
#define FOUR_OF(pairs) four_of_bf16(pairs)
#else
  const float4 *gr = (const float4 *)(g + row_offset(tg, row)), *ur = (const float4 *)(u + row_offset(tu, row));
#define FOUR_OF(x) (x)
#endif
  float4 *yr = (float4 *)(y + row_offset(ty, row));
  float4 a[UNITS], b[UNITS];
  UNROLL for (int k = 0; k < UNITS; k++) {
    int i = first + k * LANES;
    a[k] = b[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i * 4 < n) a[k] = FOUR_OF(gr[i]), b[k] = FOUR_OF(ur[i]);
  }
#if NARROW
  BARRIER();
#endif
  UNROLL for (int k = 0; k < UNITS; k++) {
    int i = first + k * LANES;
    if (i * 4 >= n) continue; /* zeros */
    float4 x = a[k], by = b[k];
    x.x = x.x / (EXP(-x.x) + 1.0f) * by.x, x.y = x.y / (EXP(-x.y) + 1.0f) * by.y;
    x.z = x.z / (EXP(-x.z) + 1.0f) * by.z, x.w = x.w / (EXP(-x.w) + 1.0f) * by.w;
    yr[i] = a[k] = x;
#if HALVES == 1
    put_halves(halves, (i64)row * n + 4 * i, x);
#endif
  }
#if HALVES == 2
  LOCAL float tops[32];
  put_scaled_row<UNITS>(halves, row, ty.n[0] * ty.n[1] * ty.n[2], n, a, tops);
#endif
}
