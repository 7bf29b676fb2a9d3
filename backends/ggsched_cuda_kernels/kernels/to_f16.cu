/* Rows of a block type as f16 for the tensor cores, behind weights.h.
 *
 * A row whose largest element may be in [2^-10, 2^15) is unpacked as it is: elements are rounded to 11 bits, and
 * by at most 2^-15 of that bound where f16 is subnormal. Any other row is multiplied by the power of two that
 * brings the bound there, and `scales` gets what undoes it (1 for all others). The bound comes from the scales of
 * the blocks where each has one, and else from the elements, which are unpacked twice. Rows are `pitch` elements apart, a multiple of 8; gaps become zeros. Groups: rows. */
#if defined(W_Q8_0)
#define LARGEST 128.0f
#elif defined(W_Q4_0)
#define LARGEST 8.0f
#elif defined(W_MXFP4)
#define LARGEST 12.0f /* SCALE_OF is half of the scale */
#else
#define LARGEST 1.0f
#define BY_ELEMENTS 1
#endif

KERNEL(to_f16)(GLOBAL const u8 *w, i64 off, i64 step, GLOBAL u8 *to, i64 to_off, i64 scale_off, int k, int pitch) {
  LOCAL float scratch[LANES];
  GLOBAL const u8 *from = w + off + ROW * step;
  float top = 0.0f;
#if defined(BY_ELEMENTS)
  for (int i = VW * LANE; i < k; i += VW * LANES) {
    vf some = WLOAD(from, i);
    UNROLL for (int l = 0; l < VW; l++) {
      float size = FLOAT_OF_BITS(BITS_OF_FLOAT(some.v[l]) & 0x7fffffffu);
      if (BITS_OF_FLOAT(size) < 0x7f800000u) top = MAX(top, size);
    }
  }
#else
  for (int i = LANE; i < k / 32; i += LANES) {
    float size = FLOAT_OF_BITS(BITS_OF_FLOAT(SCALE_OF(from + i * BLOCK_NBYTES)) & 0x7fffffffu);
    if (BITS_OF_FLOAT(size) < 0x7f800000u) top = MAX(top, size);
  }
#endif
  top = group_top(top, scratch);
  /* A quarter of the bound, which is finite for every scale. */
  int at = top > 0.0f ? (int)(BITS_OF_FLOAT(top * (0.25f * LARGEST)) >> 23) + 2 : 127;
  int power = at >= 117 && at < 142 ? 0 : MIN(126, 141 - at);
  float up = FLOAT_OF_BITS((127 + power) << 23);
  if (LANE == 0) *(GLOBAL float *)(to + scale_off + (i64)ROW * 4) = FLOAT_OF_BITS((127 - power) << 23);
  GLOBAL u16 *out = (GLOBAL u16 *)(to + to_off) + (i64)ROW * pitch;
  for (int i = 8 * LANE; i < pitch; i += 8 * LANES) {
    u32 v[4] = {0, 0, 0, 0};
    if (i < k) {
      UNROLL for (int j = 0; j < 8; j += VW) {
        vf some = WLOAD(from, i + j);
        UNROLL for (int l = 0; l < VW; l++) v[(j + l) / 2] |= HALF_OF_FLOAT(some.v[l] * up) << 16 * ((j + l) % 2);
      }
    }
    *(uint4 *)(out + i) = make_uint4(v[0], v[1], v[2], v[3]);
  }
}
