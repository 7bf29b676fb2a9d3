/* Numbers of f32 as bf16, rounded to the nearest; finite ones stay so. */
FN u32 bf16_bits(float x) {
  u32 bits = BITS_OF_FLOAT(x), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  if (x != x) return 0x7fc0u;
  return ((rounded & 0x7f800000u) == 0x7f800000u ? bits : rounded) >> 16;
}
FN u32 bf16_pair(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }

/* Four elements of rows that lie side by side, of which `at` is the first; see ggsched_cuda_kernels/halves.py. */
FN void put_halves(GLOBAL u8 *halves, i64 at, float4 v) {
  *(uint2 *)(halves + 2 * at) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
}

/* The power of two by which a row of f16 is multiplied whose largest finite element is `top`; see to_halves.cu. */
FN int half_power(float top, int keeps) {
  int at = top > 0.0f ? (int)(BITS_OF_FLOAT(top) >> 23) : 141;
  return keeps && at >= 119 && at < 142 ? 0 : MIN(126, 141 - at);
}
FN float size_of(float x) {
  u32 bits = BITS_OF_FLOAT(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? FLOAT_OF_BITS(bits) : 0.0f;
}
FN float size_of_four(float4 v) { return MAX(MAX(size_of(v.x), size_of(v.y)), MAX(size_of(v.z), size_of(v.w))); }

/* The largest x of a group of whole warps; `tops` has a float for each of 32. */
FN float largest_of_group(float x, LOCAL_PTR float *tops) {
  UNROLL for (int step = 16; step > 0; step /= 2) {
    float other = __shfl_xor_sync(0xffffffffu, x, step);
    x = MAX(x, other);
  }
  if (LANE % 32 == 0) tops[LANE / 32] = x;
  BARRIER();
  x = LANE % 32 < LANES / 32 ? tops[LANE % 32] : 0.0f;
  UNROLL for (int step = 16; step > 0; step /= 2) {
    float other = __shfl_xor_sync(0xffffffffu, x, step);
    x = MAX(x, other);
  }
  return x;
}
FN u32 f16_pair(float low, float high) { return (u32)HALF_OF_FLOAT(low) | (u32)HALF_OF_FLOAT(high) << 16; }

/* By what a group multiplies its row of n elements, one of `rows`, whose largest is `top`; behind all rows it writes what
 * undoes that. */
FN float scale_row(GLOBAL u8 *halves, int row, int rows, int n, float top, LOCAL_PTR float *tops) {
  int power = half_power(largest_of_group(top, tops), 1);
  if (LANE == 0) *(GLOBAL float *)(halves + (i64)rows * n * 2 + (i64)row * 4) = FLOAT_OF_BITS((127 - power) << 23);
  return FLOAT_OF_BITS((127 + power) << 23);
}

/* A row of n elements as f16, of which a lane has OF_LANE vectors of four. */
template <int OF_LANE>
FN void put_scaled_row(GLOBAL u8 *halves, int row, int rows, int n, const float4 *v, LOCAL_PTR float *tops) {
  float top = 0.0f;
  UNROLL for (int u = 0; u < OF_LANE; u++) {
    float size = size_of_four(v[u]);
    top = MAX(top, size);
  }
  float up = scale_row(halves, row, rows, n, top, tops);
  UNROLL for (int u = 0; u < OF_LANE; u++) {
    int i = u * LANES + LANE;
    if (i * 4 >= n) continue;
    uint2 pairs = make_uint2(f16_pair(v[u].x * up, v[u].y * up), f16_pair(v[u].z * up, v[u].w * up));
    *(uint2 *)(halves + ((i64)row * n + 4 * i) * 2) = pairs;
  }
}
