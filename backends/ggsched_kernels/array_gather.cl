/* y[o, j, i] = x[o, ids[j], i]; negative ids count from the end.
 *
 * Groups: (outer * ids, inner / span). Elements are moved, so A_T is a type of their size.
 */
KERNEL(gather)(GLOBAL const u8 *x, i64 x_off, GLOBAL const u8 *ids, i64 ids_off, GLOBAL u8 *y,
               i64 y_off, int count, int extent, int inner, int span, GLOBAL i32 *fault,
               int code) {
  int j = ROW % count, o = ROW / count;
  i64 id = CAT(R_, B_T)(ids + ids_off + (i64)j * sizeof(VB));
  i64 wrapped = id < 0 ? id + extent : id;
  int small = id > 0x7fffffff ? 0x7fffffff : id < -0x7fffffff ? -0x7fffffff : (int)id;
  if (wrapped < 0 || wrapped >= extent) {
    bad_id(small, extent, fault, code);
    return;
  }
  i64 from = x_off + ((i64)o * extent + wrapped) * inner * sizeof(VA);
  i64 at = y_off + (i64)ROW * inner * sizeof(VA);
  int end = MIN(inner, (PART + 1) * span);
  for (int i = PART * span + LANE; i < end; i += LANES)
    PLAIN_AT(VA, y + at + i * sizeof(VA)) = READ_AT(VA, x + from + i * sizeof(VA));
}
