/* y[m, n] times x_scales[m] and (HAS_COLUMNS) w_scales[n], powers of two most of which are 1: where both are,
 * y is neither read nor written. A lane for each column, ROWS rows for each group.
 * Groups: (n / LANES, rows / ROWS). */
KERNEL(unscale)(GLOBAL u8 *y, Tens ty, GLOBAL const u8 *x, i64 x_at, GLOBAL const u8 *w, i64 w_at) {
  int n = GROUP(0) * LANES + LANE, first = GROUP(1) * ROWS;
  int last = MIN(first + ROWS, ty.n[0] * ty.n[1] * ty.n[2]);
  if (n >= ty.n[3]) return;
  float column = HAS_COLUMNS ? READ_F32(w + w_at + (i64)n * 4) : 1.0f;
  for (int m = first; m < last; m++) {
    float row = READ_F32(x + x_at + (i64)m * 4);
    if (row == 1.0f && column == 1.0f) continue;
    GLOBAL u8 *at = y + row_offset(ty, m) + (i64)n * 4;
    F32_AT(at) = READ_F32(at) * row * column;
  }
}
