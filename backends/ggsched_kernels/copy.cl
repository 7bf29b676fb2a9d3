/* Copies with strides, converting from the type W_* to f32 or f16.
 *
 * Groups: (rows, last axis / span), span a multiple of 32 so that blocks are not cut.
 * `copy_f32` with W_F32 serves i32 too: loads and stores keep every bit pattern.
 */
#if W_NBYTES
#define UNIT(s) ((s) == W_NBYTES)
#define ITEM_AT(row, i, s) WITEM((row) + (i) * (s), 0)
#else
#define UNIT(s) 1
#define ITEM_AT(row, i, s) WITEM((row), (i))
#endif

KERNEL(copy_f32)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int span) {
  int from = PART * span, to = MIN(from + span, ty.n[3]);
  GLOBAL const u8 *xr = x + row_offset(tx, ROW);
  GLOBAL u8 *yr = y + row_offset(ty, ROW);
  i64 sx = tx.s[3], sy = ty.s[3];
  ELEMENTS(i, from, to, UNIT(sx) && sy == 4, { VSTORE(WLOAD(xr, i), yr + i * sy); },
           { F32_AT(yr + i * sy) = ITEM_AT(xr, i, sx); });
}

KERNEL(copy_f16)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int span) {
  int from = PART * span, to = MIN(from + span, ty.n[3]);
  GLOBAL const u8 *xr = x + row_offset(tx, ROW);
  GLOBAL u8 *yr = y + row_offset(ty, ROW);
  i64 sx = tx.s[3], sy = ty.s[3];
  ELEMENTS(i, from, to, UNIT(sx) && sy == 2, { VSTORE_HALF(WLOAD(xr, i), yr + i * sy); },
           { *(GLOBAL u16 *)(yr + i * sy) = (u16)HALF_OF_FLOAT(ITEM_AT(xr, i, sx)); });
}

/* Two-byte elements as they are. */
KERNEL(copy_16bit)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int span) {
  int from = PART * span, to = MIN(from + span, ty.n[3]);
  GLOBAL const u8 *xr = x + row_offset(tx, ROW);
  GLOBAL u8 *yr = y + row_offset(ty, ROW);
  i64 sx = tx.s[3], sy = ty.s[3];
  ELEMENTS(i, from, to, sx == 2 && sy == 2, { VSTORE_U16(VLOAD_U16(xr + i * sx), yr + i * sy); },
           { *(GLOBAL u16 *)(yr + i * sy) = *(GLOBAL const u16 *)(xr + i * sx); });
}

/* Tiles of f32: element i of an axis comes from i modulo the extent of x. */
KERNEL(repeat)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int span) {
  int from = PART * span, to = MIN(from + span, ty.n[3]);
  int row = ROW, rest = row / ty.n[2];
  GLOBAL const u8 *xr = x + tx.off + rest / ty.n[1] % tx.n[0] * tx.s[0] +
                        rest % ty.n[1] % tx.n[1] * tx.s[1] + row % ty.n[2] % tx.n[2] * tx.s[2];
  GLOBAL u8 *yr = y + row_offset(ty, row);
  i64 sx = tx.s[3], sy = ty.s[3];
  int nx = tx.n[3];
  ELEMENTS(i, from, to, sy == 4 && (nx == 1 || (sx == 4 && nx == ty.n[3])),
           { VSTORE(nx == 1 ? VSPLAT(READ_F32(xr)) : VLOAD(xr + i * sx), yr + i * sy); },
           { F32_AT(yr + i * sy) = READ_F32(xr + i % nx * sx); });
}
