/* Where elements come from: byte strides and extents of x, elements before it, extents of y;
 * outermost first, missing axes have extent 1. */
typedef struct {
  i64 x_off, y_off, value_off;
  i64 s[8];
  i32 n[8], before[8], wide[8];
} Pads;

/* y = x with elements in front of and behind each axis: a value (mode 0), the reflection without
 * the edge (1), the edge (2), or the elements of the other end (3).
 *
 * Groups: elements of y / span. Elements are moved, so A_T is a type of their size.
 */
KERNEL(pad)(GLOBAL const u8 *x, GLOBAL const u8 *value, GLOBAL u8 *y, Pads t, i64 count, int span,
            int mode) {
  i64 from = (i64)GROUP(0) * span, to = MIN(count, from + span);
  for (i64 e = from + LANE; e < to; e += LANES) {
    i64 rest = e, at = t.x_off;
    int is_outside = 0;
    for (int k = 7; k >= 0; --k) {
      int n = t.n[k], i = (int)(rest % t.wide[k]) - t.before[k];
      rest /= t.wide[k];
      if (mode == 0) {
        is_outside |= i < 0 || i >= n;
      } else if (mode == 2) {
        i = i < 0 ? 0 : i >= n ? n - 1 : i;
      } else {
        int period = mode == 3 ? n : n > 1 ? 2 * n - 2 : 1;
        i = (i % period + period) % period;
        i = i >= n ? period - i : i;
      }
      at += i * t.s[k];
    }
    PLAIN_AT(VA, y + t.y_off + e * sizeof(VA)) =
        is_outside ? READ_AT(VA, value + t.value_off) : READ_AT(VA, x + at);
  }
}
