/* Elements taken from, or put to, places that indices name; negative indices count from the end. */

/* How indices become a place: `count` of them, `step` bytes apart, each with a byte stride and an
 * extent. */
typedef struct {
  i64 stride[8];
  i64 step;
  i32 extent[8];
  i32 count;
  i32 unused;
} Places;

/* The byte offset that the indices at `ids` name; -1 if one is out of range. */
FN i64 named_place(GLOBAL const u8 *ids, const Places p, GLOBAL i32 *fault, int code) {
  i64 at = 0;
  for (int k = 0; k < p.count; ++k) {
    i64 id = CAT(R_, B_T)(ids + k * p.step);
    i64 wrapped = id < 0 ? id + p.extent[k] : id;
    if (wrapped < 0 || wrapped >= p.extent[k]) {
      bad_id(id > 0x7fffffff ? 0x7fffffff : id < -0x7fffffff ? -0x7fffffff : (int)id, p.extent[k],
             fault, code);
      return -1;
    }
    at += wrapped * p.stride[k];
  }
  return at;
}

#ifdef TAKES
/* y = x at its own place along most axes, and at the place that indices name along the others.
 *
 * Groups: (rows, last axis / span). Elements are moved, so A_T is a type of their size.
 */
KERNEL(take)(GLOBAL const u8 *x, GLOBAL const u8 *ids, GLOBAL u8 *y, Nd t, Places p, int span,
             GLOBAL i32 *fault, int code) {
  OFFSETS_OF_ROW(t)
  int to = MIN(t.n[7], (PART + 1) * span);
  (void)oc;
  for (int i = PART * span + LANE; i < to; i += LANES) {
    i64 at = named_place(ids + ob + i * t.s[1][7], p, fault, code);
    if (at < 0) return;
    PLAIN_AT(VA, y + oy + i * t.s[3][7]) = READ_AT(VA, x + oa + at + i * t.s[0][7]);
  }
}
#else
/* y, which has the elements of x, with `count` updates at the places that indices name, for each
 * element of t. NEXT combines OLD and NEW.
 *
 * Groups: elements of t. Updates of one place come in their order: each lane has places of its own
 * and looks at all updates. So there is no race, and the result is that of a loop.
 */
KERNEL(put)(GLOBAL const u8 *updates, GLOBAL const u8 *ids, GLOBAL u8 *y, Nd t, Places p, int count,
            i64 updates_step, i64 ids_step, i64 size, GLOBAL i32 *fault, int code) {
  OFFSETS_OF_ITEM(t, GROUP(0))
  for (int n = 0; n < count; ++n) {
    i64 at = named_place(ids + ob + n * ids_step, p, fault, code);
    if (at < 0) return;
    if (at / size % LANES != LANE) continue;
    VA OLD = CAT(R_, A_T)(y + oy + at);
    VA NEW = CAT(R_, A_T)(updates + oa + n * updates_step);
    VA made = (VA)(NEXT);
    CAT(W_, A_T)(y + oy + at, made);
  }
}
#endif
