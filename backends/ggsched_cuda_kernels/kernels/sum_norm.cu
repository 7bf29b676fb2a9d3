/* y = (a + b) + z, and with NORM besides m = rms_norm(y) * w over the last axis: a sum over two devices, the residual
 * and the norm behind it, as one kernel.
 *
 * One group takes one row; a lane keeps its elements in registers, UNITS vectors of four. Rows of all lie along the
 * last axis without gaps, at multiples of 16 bytes; w is one row. y and m may be a, b or z, but not each other.
 * a and b may be memory of another GPU: each element is read once.
 */
FN float warp_sum_(float x) {
  UNROLL for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

FN float4 sum_(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

KERNEL(sum_norm)(
    GLOBAL const u8 *a, Tens ta, GLOBAL const u8 *b, Tens tb, GLOBAL const u8 *z, Tens tz, GLOBAL u8 *y, Tens ty,
    GLOBAL const u8 *w, Tens tw, GLOBAL u8 *m, Tens tm, float eps) {
  int n = ty.n[3], row = GROUP(0);
  const float4 *ar = (const float4 *)(a + row_offset(ta, row)), *br = (const float4 *)(b + row_offset(tb, row));
  const float4 *zr = (const float4 *)(z + row_offset(tz, row));
  float4 *yr = (float4 *)(y + row_offset(ty, row));
  float4 v[UNITS];
  float sum = 0.0f;
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    v[u] = i * 4 < n ? sum_(sum_(ar[i], br[i]), zr[i]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i * 4 < n) yr[i] = v[u];
    sum += v[u].x * v[u].x + v[u].y * v[u].y + v[u].z * v[u].z + v[u].w * v[u].w;
  }
#if NORM
  LOCAL float sums[32];
  sum = warp_sum_(sum);
  if (LANE % 32 == 0) sums[LANE / 32] = sum;
  BARRIER();
  sum = warp_sum_(LANE % 32 < LANES / 32 ? sums[LANE % 32] : 0.0f);
  float scale = 1.0f / SQRT(sum / (float)n + eps);
  const float4 *wr = (const float4 *)(w + tw.off);
  float4 *mr = (float4 *)(m + row_offset(tm, row));
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    if (i * 4 < n) {
      float4 f = wr[i];
      mr[i] = make_float4(v[u].x * scale * f.x, v[u].y * scale * f.y, v[u].z * scale * f.z, v[u].w * scale * f.w);
    }
  }
#endif
}
