/* y[row, i] = sum over u < COUNT of x[row, u, i], plus z[row, i]: sums of a few numbers each, as when the results
 * of chosen experts are added up, and what they are added to.
 *
 * A lane for each number, so that neighbours read what lies side by side. x (R0, R1, COUNT, n), y and z
 * (.., .., .., n) with as many rows; z is broadcast by strides of 0. y may be z.
 * Groups: (n / LANES, rows).
 */
KERNEL(sum_add)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *z, Tens tz, GLOBAL u8 *y, Tens ty) {
  int i = GROUP(0) * LANES + LANE, row = GROUP(1);
  if (i >= ty.n[3]) return;
  GLOBAL const u8 *xi = x + tx.off + row / tx.n[1] * tx.s[0] + row % tx.n[1] * tx.s[1] + i * tx.s[3];
  float rest = READ_F32(z + row_offset(tz, row) + i * tz.s[3]), sum = 0.0f;
  UNROLL for (int u = 0; u < COUNT; u++) sum += READ_F32(xi + u * tx.s[2]);
  F32_AT(y + row_offset(ty, row) + i * ty.s[3]) = sum + rest;
}

/* y[i] = sum over u < COUNT of x[u, i], for one row, which is written to other places too unless they are null. */
#if ALSO
KERNEL(sum_sent)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, u8 *also0, u8 *also1, u8 *also2, u8 *also3) {
  int i = GROUP(0) * LANES + LANE;
  if (i >= ty.n[3]) return;
  GLOBAL const u8 *xi = x + tx.off + i * tx.s[3];
  float sum = 0.0f;
  UNROLL for (int u = 0; u < COUNT; u++) sum += READ_F32(xi + u * tx.s[2]);
  u8 *places[] = {y + ty.off, also0, also1, also2, also3};
  UNROLL for (int p = 0; p < 5; p++)
    if (places[p] != 0) F32_AT(places[p] + (i64)i * 4) = sum;
}
#endif
