/* Stable order of the last axis: blocks of BLOCK are sorted by counting for each element those
 * before it; then runs are merged in pairs, each element finding its place in the other run by
 * binary search. No step has a race or depends on the number of lanes.
 *
 * Groups: (rows, last axis / BLOCK). The indices of a row lie side by side, `rows` further on.
 */
#define BLOCK 256

KERNEL(sort_blocks)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, i64 y_off, int y_row, int keep, int descending) {
  LOCAL i32 keys[BLOCK];
  int from = PART * BLOCK, count = MIN(BLOCK, tx.n[3] - from), row = ROW;
  GLOBAL const u8 *xr = x + row_offset(tx, row) + from * tx.s[3];
  GLOBAL i32 *yr = (GLOBAL i32 *)(y + y_off) + (i64)row * y_row;
  for (int i = LANE; i < count; i += LANES) keys[i] = sort_key(READ_F32(xr + i * tx.s[3]), descending);
  BARRIER();
  for (int i = LANE; i < count; i += LANES) {
    i32 key = keys[i];
    int place = 0;
    for (int j = 0; j < i; j++) place += keys[j] <= key;
    for (int j = i + 1; j < count; j++) place += keys[j] < key;
    if (from + place < keep) yr[from + place] = from + i;
  }
}

/* Merge runs of `width` from `in` to `y`, of which only the first `keep` of a row are kept. */
KERNEL(sort_merge)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *in, i64 in_off, GLOBAL u8 *y, i64 y_off, int y_row,
                   int keep, int descending, int width) {
  int n = tx.n[3], row = ROW, to = MIN((PART + 1) * BLOCK, n);
  GLOBAL const u8 *xr = x + row_offset(tx, row);
  GLOBAL const i32 *ir = (GLOBAL const i32 *)(in + in_off) + (i64)row * n;
  GLOBAL i32 *yr = (GLOBAL i32 *)(y + y_off) + (i64)row * y_row;
  for (int i = PART * BLOCK + LANE; i < to; i += LANES) {
    int run = i / width, second = run & 1;
    int other = second ? (run - 1) * width : MIN((run + 1) * width, n);
    int low = other, high = second ? run * width : MIN(other + width, n);
    i32 key = sort_key(READ_F32(xr + ir[i] * tx.s[3]), descending);
    while (low < high) {
      int middle = (low + high) / 2;
      i32 k = sort_key(READ_F32(xr + ir[middle] * tx.s[3]), descending);
      if (second ? k <= key : k < key)
        low = middle + 1;
      else
        high = middle;
    }
    int base = second ? (run - 1) * width : run * width;
    int place = base + (i - run * width) + (low - other);
    if (place < keep) yr[place] = ir[i];
  }
}

/* The index of the largest number of each span of a row, the first of several, NaN last. If `indexed`,
 * a row has one span, of the `span` numbers whose indices are at `in`. LANES is a power of two.
 * Groups: (rows, spans). */
KERNEL(largest)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *in, i64 in_off, GLOBAL u8 *y, i64 y_off, int y_row,
                int span, int indexed) {
  LOCAL i32 keys[LANES];
  LOCAL i32 places[LANES];
  int row = ROW, from = indexed ? 0 : PART * span, to = indexed ? span : MIN(from + span, tx.n[3]);
  GLOBAL const u8 *xr = x + row_offset(tx, row);
  GLOBAL const i32 *ir = (GLOBAL const i32 *)(in + in_off) + (i64)row * span;
  i32 best = 0x7fffffff;
  int place = 0x7fffffff;
  for (int i = from + LANE; i < to; i += LANES) {
    int at = indexed ? ir[i] : i;
    i32 key = sort_key(READ_F32(xr + at * tx.s[3]), 1);
    if (key < best || place == 0x7fffffff) best = key, place = at;
  }
  keys[LANE] = best;
  places[LANE] = place;
  BARRIER();
  for (int step = LANES / 2; step > 0; step /= 2) {
    if (LANE < step) {
      int other = places[LANE + step];
      i32 key = keys[LANE + step];
      if (key < keys[LANE] || (key == keys[LANE] && other < places[LANE])) {
        keys[LANE] = key;
        places[LANE] = other;
      }
    }
    BARRIER();
  }
  if (LANE == 0) ((GLOBAL i32 *)(y + y_off))[(i64)row * y_row + PART] = places[0];
}
