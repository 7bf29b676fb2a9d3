/* y = (a + b) + z, and with NORM besides m = rms_norm(y) * w over the last axis: a sum over two devices, the residual
 * and the norm behind it, as one kernel. Without THIRD y = a + b: a product, and the residual. With PARTS 4 a sum over
 * four devices, y = (t + d) + z with t = (a + b) + c, which is written too. With HALVES m is written besides as bf16 (1)
 * or as f16 with a scale for each row (2), for the product that follows.
 *
 * One group takes one row; a lane keeps its elements in registers, UNITS vectors of four. Rows of all lie along the
 * last axis without gaps, at multiples of 16 bytes; w is one row. t, y and m may be an addend, and y may be t.
 * Addends may be memory of another GPU: each element is read once.
 *
 * Where `own0` is not 0 the kernel meets those of other GPUs that make addends, of up to PEERS: when all before
 * it is complete it sets a word in the memory of each of these GPUs (`peer0`, ...), one for each row, and reads nothing
 * before they have set its own words (`own0`, ...), each one of them. These are 0 again when the kernel ends. After
 * `patience` nanoseconds it gives up and writes the stream's `fault`.
 */
FN void meet_(u32 *own, u32 *peer, i64 patience, GLOBAL i32 *fault, int code) {
  SIGNAL(peer);
  if (await_word_(own, patience, fault, code)) *(volatile u32 *)own = 0;
}

FN float warp_sum_(float x) {
  UNROLL for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

FN float4 sum_(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

KERNEL(sum_norm)(
    GLOBAL const u8 *a, Tens ta, GLOBAL const u8 *b, Tens tb, GLOBAL const u8 *c, Tens tc, GLOBAL const u8 *d, Tens td,
    GLOBAL const u8 *z, Tens tz, GLOBAL u8 *t, Tens tt, GLOBAL u8 *y, Tens ty, GLOBAL const u8 *w, Tens tw,
    GLOBAL u8 *m, Tens tm, float eps, u32 *own0, u32 *peer0, u32 *own1, u32 *peer1, u32 *own2, u32 *peer2, i64 patience, GLOBAL i32 *fault, int code, GLOBAL u8 *halves) {
  int n = ty.n[3], row = GROUP(0);
  const float4 *ar = (const float4 *)(a + row_offset(ta, row)), *br = (const float4 *)(b + row_offset(tb, row));
  const float4 *cr = (const float4 *)(c + row_offset(tc, row)), *dr = (const float4 *)(d + row_offset(td, row));
  const float4 *zr = (const float4 *)(z + row_offset(tz, row));
  float4 *yr = (float4 *)(y + row_offset(ty, row));
  if (own0) {
    u32 *own = LANE == 0 ? own0 : LANE == 1 ? own1 : own2, *peer = LANE == 0 ? peer0 : LANE == 1 ? peer1 : peer2;
    if (LANE < PEERS && own) meet_(own + row, peer + row, patience, fault, code);
    BARRIER();
  }
#if NORM
  const float4 *wr = (const float4 *)(w + tw.off);
  float4 f[UNITS];  /* on their way while the other GPU's rows are */
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    f[u] = i * 4 < n ? wr[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#endif
  float4 v[UNITS];
  float sum = 0.0f;
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    v[u] = i * 4 < n ? sum_(ar[i], br[i]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if PARTS == 4
    if (i * 4 < n) {
      float4 more = cr[i], last = dr[i];  /* on their way at once */
      v[u] = sum_(v[u], more);
      ((float4 *)(t + row_offset(tt, row)))[i] = v[u];
      v[u] = sum_(v[u], last);
    }
#endif
#if THIRD
    if (i * 4 < n) v[u] = sum_(v[u], zr[i]);
#endif
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
  float4 *mr = (float4 *)(m + row_offset(tm, row));
  UNROLL for (int u = 0; u < UNITS; u++) {
    int i = u * LANES + LANE;
    float4 g = f[u], s = v[u];
    if (i * 4 >= n) continue;
    mr[i] = v[u] = make_float4(s.x * scale * g.x, s.y * scale * g.y, s.z * scale * g.z, s.w * scale * g.w);
#if HALVES == 1
    put_halves(halves, (i64)row * n + 4 * i, v[u]);
#endif
  }
#if HALVES == 2
  LOCAL float tops[32];
  put_scaled_row<UNITS>(halves, row, ty.n[0] * ty.n[1] * ty.n[2], n, v, tops);
#endif
#endif
}
