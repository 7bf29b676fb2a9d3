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
