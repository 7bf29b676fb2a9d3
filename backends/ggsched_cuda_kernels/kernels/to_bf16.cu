/* Rows of a packed type or of f32 as bf16 for the tensor cores, behind weights.h.
 *
 * PLANES 1: the elements rounded to bf16, for types whose elements bf16 has. PLANES 2: each element as
 * a sum of two, the rounded one and, `plane` elements behind, what is left of it, rounded too: 16 bits or
 * more of it. An element that is not finite is in the second plane alone, zero in the first, so that
 * it meets each element of another sum of two once. Rows are `pitch` elements apart, a multiple of 8; gaps
 * become zeros. Groups: enough lanes for rows * pitch / 8. */
FN u32 bf16_of_(float x) {
  u32 bits = BITS_OF_FLOAT(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return ((rounded & 0x7f800000u) == 0x7f800000u ? bits : rounded) >> 16; /* finite ones stay so */
}
FN int is_finite_(float x) { return (BITS_OF_FLOAT(x) & 0x7f800000u) != 0x7f800000u; }
FN u32 not_finite_(float x) { return BITS_OF_FLOAT(x) >> 16 | (x != x ? 64u : 0u); }

KERNEL(to_bf16)(GLOBAL const u8 *x, i64 off, i64 step, GLOBAL u8 *to, i64 to_off, int rows, int k, int pitch,
                i64 plane) {
  int chunks = pitch / 8;
  i64 i = (i64)GROUP(0) * LANES + LANE;
  if (i >= (i64)rows * chunks) return;
  int row = (int)(i / chunks), at = (int)(i % chunks) * 8;
  GLOBAL const u8 *from = x + off + row * step;
  float v[8];
  UNROLL for (int j = 0; j < 8; j += VW) {
    if (at + j + VW <= k) {
      vf some = WLOAD(from, at + j);
      UNROLL for (int l = 0; l < VW; l++) v[j + l] = some.v[l];
    } else {
      UNROLL for (int l = 0; l < VW; l++) v[j + l] = at + j + l < k ? WITEM(from, at + j + l) : 0.0f;
    }
  }
  u32 high[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
  UNROLL for (int j = 0; j < 8; j++) {
    u32 first = bf16_of_(v[j]), rest = 0;
    if (PLANES == 2) {
      first = is_finite_(v[j]) ? first : 0;
      rest = is_finite_(v[j]) ? bf16_of_(v[j] - FLOAT_OF_BITS(first << 16)) : not_finite_(v[j]);
    } else {
      first = is_finite_(v[j]) ? first : not_finite_(v[j]);
    }
    high[j / 2] |= first << 16 * (j % 2);
    low[j / 2] |= rest << 16 * (j % 2);
  }
  GLOBAL u16 *out = (GLOBAL u16 *)(to + to_off) + (i64)row * pitch + at;
  *(uint4 *)out = make_uint4(high[0], high[1], high[2], high[3]);
  if (PLANES == 2) *(uint4 *)(out + plane) = make_uint4(low[0], low[1], low[2], low[3]);
}
