/* Results of one axis, for each element of t: the axes that stay. a_step and y_step are the byte
 * strides along that axis, which has n elements.
 */

#ifdef NEXT
/* Sums or products of the elements up to each; without the element itself if `exclusive`.
 *
 * Groups: elements of t / LANES; a lane has an axis of its own.
 */
KERNEL(running)(GLOBAL const u8 *a, GLOBAL u8 *y, Nd t, int items, i64 a_step, i64 y_step, int n,
                int exclusive, int reverse) {
  int item = GROUP(0) * LANES + LANE;
  if (item >= items) return;
  OFFSETS_OF_ITEM(t, item)
  (void)ob;
  VA OLD = (VA)(FIRST);
  for (int k = 0; k < n; ++k) {
    int i = reverse ? n - 1 - k : k;
    VA NEW = CAT(R_, A_T)(a + oa + i * a_step), made = (VA)(NEXT);
    CAT(W_, A_T)(y + oy + i * y_step, exclusive ? OLD : made);
    OLD = made;
  }
}
#elif defined(IS_BETTER)
/* The index of the largest or smallest element, the first or the last of several; NaN is both.
 *
 * Groups: elements of t / LANES; a lane has an axis of its own.
 */
KERNEL(best)(GLOBAL const u8 *a, GLOBAL u8 *y, Nd t, int items, i64 a_step, int n, int last) {
  int item = GROUP(0) * LANES + LANE;
  if (item >= items) return;
  OFFSETS_OF_ITEM(t, item)
  (void)ob;
  int best = 0;
  VA B = CAT(R_, A_T)(a + oa);
  for (int i = 1; i < n; ++i) {
    VA A = CAT(R_, A_T)(a + oa + i * a_step);
    int is_same = A == B || (A != A && B != B);
    if (is_same ? last : B == B && (A != A || (IS_BETTER))) {
      best = i;
      B = A;
    }
  }
  PLAIN_AT(i64, y + oy) = best;
}
#else
/* The indices of the k first elements in order, ties by index; NaN is larger than all.
 *
 * Groups: (elements of t, n / span). The place of an element is the number of those before it.
 */
KERNEL(top_k)(GLOBAL const u8 *a, GLOBAL u8 *y, Nd t, i64 a_step, i64 y_step, int n, int keep,
              int span, int largest) {
  OFFSETS_OF_ITEM(t, ROW)
  (void)ob;
  int to = MIN(n, (PART + 1) * span);
  for (int i = PART * span + LANE; i < to; i += LANES) {
    VA A = CAT(R_, A_T)(a + oa + i * a_step);
    int place = 0;
    for (int j = 0; j < n; ++j) {
      VA B = CAT(R_, A_T)(a + oa + j * a_step);
      int is_same = A == B || (A != A && B != B);
      int is_less = B < A || (A != A && B == B), is_more = B > A || (B != B && A == A);
      place += is_same ? j < i : largest ? is_more : is_less;
    }
    if (place < keep) PLAIN_AT(i64, y + oy + place * y_step) = i;
  }
}
#endif
