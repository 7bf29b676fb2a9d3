/* Rows of f32 as 16-bit numbers for tile_product. HALF_BF16 0: f16, of a row times a power of two that brings
 * its largest element to [2^14, 2^15), so that nothing overflows and what is flushed is less than 2^-39 of
 * that element; `scales` gets what undoes it. (The power is at most 2^126.) With PLANES 1 rows whose largest
 * element is in [2^-8, 2^15) stay as they are, and lose at most 2^-17 of it where f16 is subnormal: for
 * most rows nothing has to be undone. HALF_BF16 1: bf16, as they are.
 *
 * PLANES 2: what rounding leaves of an element follows, rounded too, `plane` bytes behind. Rows are `pitch` bytes
 * apart, zeros behind their last element. Elements that are not finite stay so. With UNITS a lane keeps that many vectors
 * of four, so that a row is read once: PLANES 1, and rows that are whole vectors at multiples of 16 bytes. Groups: rows. */
FN u32 half_bits(float x) {
#if HALF_BF16
  return bf16_bits(x);
#else
  return HALF_OF_FLOAT(x);
#endif
}
FN float of_half_bits(u32 bits) {
#if HALF_BF16
  return FLOAT_OF_BITS(bits << 16);
#else
  return FLOAT_OF_HALF(bits);
#endif
}
FN int has_value(float x) { return (BITS_OF_FLOAT(x) & 0x7f800000u) != 0x7f800000u; }

KERNEL(to_halves)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *to, i64 scale_off, i64 plane, int pitch) {
  LOCAL float scratch[LANES];
  GLOBAL const float *from = (GLOBAL const float *)(x + row_offset(tx, ROW));
  int k = tx.n[3];
#if UNITS
  float4 v[UNITS];
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    v[u] = i * 4 < k ? ((GLOBAL const float4 *)from)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#if HALF_BF16
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    if (i * 4 < k) put_halves(to, (i64)ROW * k + 4 * i, v[u]);
  }
#else
  put_scaled_row<UNITS>(to, ROW, tx.n[0] * tx.n[1] * tx.n[2], k, v, scratch);
#endif
#else
  float up = 1.0f;
#if !HALF_BF16
  float top = 0.0f;
  for (int i = VW * LANE; i < k; i += VW * LANES) {
    UNROLL for (int l = 0; l < VW; l++) {
      float size = i + l < k && has_value(from[i + l]) ? FLOAT_OF_BITS(BITS_OF_FLOAT(from[i + l]) & 0x7fffffffu) : 0.0f;
      top = MAX(top, size);
    }
  }
  top = group_top(top, scratch);
  int power = half_power(top, PLANES == 1);
  up = FLOAT_OF_BITS((127 + power) << 23);
  if (LANE == 0) *(GLOBAL float *)(to + scale_off + (i64)ROW * 4) = FLOAT_OF_BITS((127 - power) << 23);
#endif
  for (int i = 4 * LANE; i < pitch / 2; i += 4 * LANES) {
    u32 high[2] = {0, 0}, low[2] = {0, 0};
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i + 4 <= k) {
      vf some = VLOAD(from + i);
      UNROLL for (int l = 0; l < 4; l++) v[l] = some.v[l];
    } else {
      UNROLL for (int l = 0; l < 4; l++) v[l] = i + l < k ? from[i + l] : 0.0f;
    }
    UNROLL for (int l = 0; l < 4; l++) {
      float scaled = v[l] * up;
      u32 bits = half_bits(scaled);
      high[l / 2] |= bits << 16 * (l % 2);
      if (PLANES == 2 && has_value(v[l])) low[l / 2] |= half_bits(scaled - of_half_bits(bits)) << 16 * (l % 2);
    }
    GLOBAL u8 *out = to + (i64)ROW * pitch + 2 * i;
    *(uint2 *)out = make_uint2(high[0], high[1]);
    if (PLANES == 2) *(uint2 *)(out + plane) = make_uint2(low[0], low[1]);
  }
#endif
}
