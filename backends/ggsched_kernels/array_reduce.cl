/* One element of y from all elements of a along some axes.
 *
 * `kept` has the axes that stay, `t` those that go. NEXT combines SUM and A, LAST finishes it.
 * A row of the innermost axis has a sum of its own, so that long sums lose less. Where the host
 * defines TOGETHER, the lanes of a group share an element of y, otherwise each has its own.
 */
KERNEL(reduce)(GLOBAL const u8 *a, GLOBAL u8 *y, Nd kept, Nd t, int count, int rows, float COUNT) {
#if TOGETHER
  LOCAL VY parts[LANES];
  int at = GROUP(0);
#else
  int at = GROUP(0) * LANES + LANE;
  if (at >= count) return;
#endif
  i64 oa = kept.off[0], oy = kept.off[3];
  for (int k = 7; k >= 0; --k) {
    int i = at % kept.n[k];
    at /= kept.n[k];
    oa += i * kept.s[0][k];
    oy += i * kept.s[3][k];
  }
  VY TOTAL = (VY)(FIRST);
#if TOGETHER
  for (int e = LANE; e < rows * t.n[7]; e += LANES) {
    i64 o = oa + e % t.n[7] * t.s[0][7];
    int rest = e / t.n[7];
    for (int k = 6; k >= 0; --k) {
      o += rest % t.n[k] * t.s[0][k];
      rest /= t.n[k];
    }
    VY A = (VY)CAT(R_, A_T)(a + o);
    TOTAL = NEXT(TOTAL, MAPPED);
  }
  parts[LANE] = TOTAL;
  BARRIER();
  for (int step = LANES / 2; step > 0; step /= 2) {
    if (LANE < step) parts[LANE] = NEXT(parts[LANE], parts[LANE + step]);
    BARRIER();
  }
  TOTAL = parts[0];
  if (LANE > 0) return;
#else
  for (int row = 0; row < rows; ++row) {
    i64 o = oa;
    int rest = row;
    for (int k = 6; k >= 0; --k) {
      o += rest % t.n[k] * t.s[0][k];
      rest /= t.n[k];
    }
    VY SUM = (VY)(FIRST);
    for (int i = 0; i < t.n[7]; ++i) {
      VY A = (VY)CAT(R_, A_T)(a + o + i * t.s[0][7]);
      SUM = NEXT(SUM, MAPPED);
    }
    TOTAL = NEXT(TOTAL, SUM);
  }
#endif
  CAT(W_, Y_T)(y + oy, LAST);
}
