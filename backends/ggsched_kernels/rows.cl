/* Rows chosen by ids that come with the data. An id out of range touches no memory: its result is
 * zeros (set_rows: nothing is written), and the stream's `fault` tells.
 *
 * Groups: (ids, last axis / span), span a multiple of 32.
 */

/* y[i0, i1, i2] = table[i0, i1, ids[i0, i1, i2]]; a table without batch axes has strides of 0 there.
 * `ids` has axes (i0, i1, i2, 1). */
KERNEL(get_rows)(GLOBAL const u8 *table, Tens tt, GLOBAL const u8 *ids, Tens ti, GLOBAL u8 *y,
                 Tens ty, int span, GLOBAL i32 *fault, int code) {
  int from = PART * span, to = MIN(from + span, ty.n[3]), row = ROW;
  int rest = row / ti.n[2];
  int id = READ_I32(ids + row_offset(ti, row));
  int bad = bad_id(id, tt.n[2], fault, code);
  GLOBAL const u8 *xr = table + tt.off + rest / ti.n[1] * tt.s[0] + rest % ti.n[1] * tt.s[1] +
                        (bad ? 0 : id) * tt.s[2];
  GLOBAL u8 *yr = y + row_offset(ty, row);
  i64 sx = tt.s[3], sy = ty.s[3];
  if (bad) {
    for (int i = from + LANE; i < to; i += LANES) F32_AT(yr + i * sy) = 0.0f;
    return;
  }
#if W_NBYTES
  ELEMENTS(i, from, to, sx == W_NBYTES && sy == 4, { VSTORE(WLOAD(xr, i), yr + i * sy); },
           { F32_AT(yr + i * sy) = WITEM(xr + i * sx, 0); });
#else
  ELEMENTS(i, from, to, sy == 4, { VSTORE(WLOAD(xr, i), yr + i * sy); },
           { F32_AT(yr + i * sy) = WITEM(xr, i); });
#endif
}

/* dst[ids[i]] = src[i], dst f32 or, with `to_half`, f16. `src` (1, 1, T, n), `ids` (1, 1, T, 1). */
KERNEL(set_rows)(GLOBAL u8 *dst, Tens td, GLOBAL const u8 *src, Tens ts, GLOBAL const u8 *ids,
                 Tens ti, int to_half, int span, GLOBAL i32 *fault, int code) {
  int from = PART * span, to = MIN(from + span, ts.n[3]), row = ROW;
  int id = READ_I32(ids + row_offset(ti, row));
  if (bad_id(id, td.n[2], fault, code)) return;
  GLOBAL const u8 *xr = src + row_offset(ts, row);
  GLOBAL u8 *yr = dst + td.off + id * td.s[2];
  i64 sx = ts.s[3], sy = td.s[3];
  if (to_half) {
    ELEMENTS(i, from, to, sx == 4 && sy == 2, { VSTORE_HALF(VLOAD(xr + i * sx), yr + i * sy); },
             { *(GLOBAL u16 *)(yr + i * sy) = (u16)HALF_OF_FLOAT(READ_F32(xr + i * sx)); });
  } else {
    ELEMENTS(i, from, to, sx == 4 && sy == 4, { VSTORE(VLOAD(xr + i * sx), yr + i * sy); },
             { F32_AT(yr + i * sy) = READ_F32(xr + i * sx); });
  }
}

/* y[t, u] = x[t, u] + bias[ids[t, u]]; y may be x. `bias` (1, 1, E, n), `ids` (1, T, U, 1). */
KERNEL(add_id)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *bias, Tens tb, GLOBAL const u8 *ids,
               Tens ti, GLOBAL u8 *y, Tens ty, int span, GLOBAL i32 *fault, int code) {
  int from = PART * span, to = MIN(from + span, ty.n[3]), row = ROW;
  int id = READ_I32(ids + row_offset(ti, row));
  GLOBAL const u8 *xr = x + row_offset(tx, row);
  GLOBAL u8 *yr = y + row_offset(ty, row);
  i64 sx = tx.s[3], sb = tb.s[3], sy = ty.s[3];
  if (bad_id(id, tb.n[2], fault, code)) {
    for (int i = from + LANE; i < to; i += LANES) F32_AT(yr + i * sy) = 0.0f;
    return;
  }
  GLOBAL const u8 *br = bias + tb.off + id * tb.s[2];
  ELEMENTS(i, from, to, sx == 4 && sb == 4 && sy == 4,
           { VSTORE(VLOAD(xr + i * sx) + VLOAD(br + i * sb), yr + i * sy); },
           { F32_AT(yr + i * sy) = READ_F32(xr + i * sx) + READ_F32(br + i * sb); });
}
