/* y = rms_norm(x) * w over the last axis, in one pass over x; with GATED 1 times silu(z), with 2 plus z. With HALVES besides
 * the same as bf16 (1) or as f16 with a scale for each row (2), for the product that follows. CENTRED: norm in place of
 * rms_norm; APART: elements of x lie anywhere.
 *
 * One group takes one row; a lane keeps its elements in registers, UNITS vectors of four. Rows of x, w, z and
 * y lie along the last axis without gaps, at multiples of 16 bytes; w is broadcast by strides of 0.
 * y may be x, w or z.
 */
FN float warp_sum_(float x) {
  UNROLL for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

KERNEL(rms_mul)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *z, Tens tz,
                GLOBAL u8 *y, Tens ty, float eps, GLOBAL u8 *halves) {
  LOCAL float sums[32];
  int n = tx.n[3], row = GROUP(0);
  const float4 *xr = (const float4 *)(x + row_offset(tx, row));
  const float4 *wr = (const float4 *)(w + row_offset(tw, row));
  float4 *yr = (float4 *)(y + row_offset(ty, row));
  float4 v[UNITS];
  float sum = 0.0f;
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
#if APART
    v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i * 4 < n) {
      GLOBAL const u8 *at = (GLOBAL const u8 *)xr + 4 * i * tx.s[3];
      v[u] = make_float4(READ_F32(at), READ_F32(at + tx.s[3]), READ_F32(at + 2 * tx.s[3]), READ_F32(at + 3 * tx.s[3]));
    }
#else
    v[u] = i * 4 < n ? xr[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
#if CENTRED
    sum += v[u].x + v[u].y + v[u].z + v[u].w;
  }
  sum = warp_sum_(sum);
  if (LANE % 32 == 0) sums[LANE / 32] = sum;
  BARRIER();
  float mean = warp_sum_(LANE % 32 < LANES / 32 ? sums[LANE % 32] : 0.0f) / (float)n;
  BARRIER();
  sum = 0.0f;
  UNROLL for (int u = 0; u < UNITS; u++) {
    if ((u * LANES + LANE) * 4 >= n) continue;
    v[u].x -= mean, v[u].y -= mean, v[u].z -= mean, v[u].w -= mean;
#endif
    sum += v[u].x * v[u].x + v[u].y * v[u].y + v[u].z * v[u].z + v[u].w * v[u].w;
  }
  sum = warp_sum_(sum);
  if (LANE % 32 == 0) sums[LANE / 32] = sum;
  BARRIER();
  sum = warp_sum_(LANE % 32 < LANES / 32 ? sums[LANE % 32] : 0.0f);
  float scale = 1.0f / SQRT(sum / (float)n + eps);
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    if (i * 4 < n) {
      float4 m = wr[i];
      float4 made = make_float4(v[u].x * scale * m.x, v[u].y * scale * m.y, v[u].z * scale * m.z, v[u].w * scale * m.w);
#if GATED == 2
      float4 g = ((const float4 *)(z + row_offset(tz, row)))[i];
      made.x += g.x, made.y += g.y, made.z += g.z, made.w += g.w;
#elif GATED
      float4 g = ((const float4 *)(z + row_offset(tz, row)))[i];
      made.x *= g.x / (EXP(-g.x) + 1.0f), made.y *= g.y / (EXP(-g.y) + 1.0f);
      made.z *= g.z / (EXP(-g.z) + 1.0f), made.w *= g.w / (EXP(-g.w) + 1.0f);
#endif
      yr[i] = v[u] = made;
#if HALVES == 1
      put_halves(halves, (i64)row * n + 4 * i, made);
#endif
    }
  }
#if HALVES == 2
  LOCAL float tops[32];
  put_scaled_row<UNITS>(halves, row, tx.n[0] * tx.n[1] * tx.n[2], n, v, tops);
#endif
}
