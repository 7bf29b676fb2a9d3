/* Rows of a block type as f16 for the tensor cores, behind weights.h and blocks.h. A warp has a row.
 *
 * A row whose largest element may be in [2^-10, 2^15) is unpacked as it is: elements are rounded to 11 bits, and
 * by at most 2^-15 of that bound where f16 is subnormal. Any other row is multiplied by the power of two that
 * brings the bound there, and `scales` gets what undoes it (1 for all others). The bound comes from the scales of
 * the blocks or parts, and from what is added to their elements.
 *
 * A lane stores 16 bytes of f16 at a time. Of types whose bytes are put together from bit fields it reads two words, and the scale
 * of its part, where reading elements one by one takes as many loads as there are bytes. */
#if defined(CODE_FIELDS)
#define LARGEST ((float)BYTE_LARGEST)
#define BOUNDS(k) ((k) / 32 * PARTS)
#define BOUND_AT(from, i) bound_of((from) + (i) / (PARTS * PER_BLOCK) * BLOCK_NBYTES, (i) % (PARTS * PER_BLOCK))
FN float size_of(float x) { return FLOAT_OF_BITS(BITS_OF_FLOAT(x) & 0x7fffffffu); }
FN float bound_of(GLOBAL const u8 *block, int s) {
  float bound = size_of(block_scale(block, s));
#if HAS_MIN
  bound += size_of(block_min(block, s)) * (1.0f / LARGEST);
#endif
  return bound;
}

/* Four signed bytes as pairs of f16. */
FN uint2 halves_of(u32 bytes, float scale, float min) {
  u32 v[4];
  UNROLL for (int i = 0; i < 4; i++) v[i] = HALF_OF_FLOAT((float)(i8)(bytes >> 8 * i) * scale + min);
  return make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16);
}
#else
#if defined(W_Q8_0)
#define LARGEST 128.0f
#elif defined(W_Q4_0)
#define LARGEST 8.0f
#else
#define LARGEST 12.0f /* SCALE_OF is half of the scale */
#endif
#define BOUNDS(k) ((k) / 32)
#define BOUND_AT(from, i) FLOAT_OF_BITS(BITS_OF_FLOAT(SCALE_OF((from) + (i)*BLOCK_NBYTES)) & 0x7fffffffu)
#endif

KERNEL(to_f16)(GLOBAL const u8 *w, i64 off, i64 step, GLOBAL u8 *to, i64 to_off, i64 scale_off, int k, int rows) {
  int row = GROUP(0) * (LANES / WARP) + WARP_INDEX, exists = row < rows;
  row = MIN(row, rows - 1);
  GLOBAL const u8 *from = w + off + row * step;
  float top = 0.0f;
  for (int i = WARP_LANE; i < BOUNDS(k); i += WARP) {
    float size = BOUND_AT(from, i);
    if (BITS_OF_FLOAT(size) < 0x7f800000u) top = MAX(top, size);
  }
  UNROLL_MEETING for (int mask = 1; mask < WARP; mask *= 2) {
    float other = EXCHANGED(top, mask, 0);
    top = MAX(top, other);
  }
  /* A quarter of the bound, which is finite for every scale. */
  int at = top > 0.0f ? (int)(BITS_OF_FLOAT(top * (0.25f * LARGEST)) >> 23) + 2 : 127;
  int power = at >= 117 && at < 142 ? 0 : MIN(126, 141 - at);
  float up = FLOAT_OF_BITS((127 + power) << 23);
  if (!exists) return;
  if (WARP_LANE == 0) *(GLOBAL float *)(to + scale_off + (i64)row * 4) = FLOAT_OF_BITS((127 - power) << 23);
  GLOBAL u16 *out = (GLOBAL u16 *)(to + to_off) + (i64)row * k;
#if defined(CODE_FIELDS)
  /* Lane 4 g + t has elements 4 t .. and 16 + 4 t .. of a piece of 32. */
  int t = WARP_LANE % 4, ahead = (int)((u64)from & 3);
  _Pragma("unroll 4") for (int piece = WARP_LANE / 4; piece < k / 32; piece += WARP / 4) {
    int begin = piece / PER_BLOCK * BLOCK_NBYTES, s = piece % PER_BLOCK;
    u32 first, second;
    unpack_words(&first, &second, from - ahead, ahead + begin, s, t);
    float scale[2], min[2] = {0.0f, 0.0f};
    UNROLL for (int p = 0; p < 2; p++) {
      scale[p] = p < PARTS ? up * block_scale(from + begin, s * PARTS + p) : scale[0];
#if HAS_MIN
      min[p] = p < PARTS ? up * block_min(from + begin, s * PARTS + p) : min[0];
#endif
    }
    *(uint2 *)(out + 32 * piece + 4 * t) = halves_of(first, scale[0], min[0]);
    *(uint2 *)(out + 32 * piece + 16 + 4 * t) = halves_of(second, scale[1], min[1]);
  }
#else
  for (int i = 8 * WARP_LANE; i < k; i += 8 * WARP) {
    u32 v[4] = {0, 0, 0, 0};
    UNROLL for (int j = 0; j < 8; j += VW) {
      vf some = WLOAD(from, i + j);
      UNROLL for (int l = 0; l < VW; l++) v[(j + l) / 2] |= HALF_OF_FLOAT(some.v[l] * up) << 16 * ((j + l) % 2);
    }
    *(uint4 *)(out + i) = make_uint4(v[0], v[1], v[2], v[3]);
  }
#endif
}
