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
