/* Sums over the last axis. One group takes one row; y may be x, for every element of a row is read
 * for the sums before the first is written, and then each is read before it is written. */
#define RMS 0
#define MEAN 1

KERNEL(norm_rows)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int kind, float eps) {
  LOCAL float scratch[LANES];
  GLOBAL const u8 *xr = x + row_offset(tx, GROUP(0));
  GLOBAL u8 *yr = y + row_offset(ty, GROUP(0));
  i64 sx = tx.s[3], sy = ty.s[3];
  int n = tx.n[3], unit = sx == 4 && sy == 4;
  float mean = 0.0f, one = 0.0f;
  vf many = VSPLAT(0.0f);
  if (kind == MEAN) {
    ELEMENTS(i, 0, n, unit, { many += VLOAD(xr + i * sx); }, { one += READ_F32(xr + i * sx); });
    mean = group_sum(VSUM(many) + one, scratch) / (float)n;
  }
  many = VSPLAT(0.0f);
  one = 0.0f;
  ELEMENTS(i, 0, n, unit,
           {
             vf d = VLOAD(xr + i * sx) - mean;
             many += d * d;
           },
           {
             float d = READ_F32(xr + i * sx) - mean;
             one += d * d;
           });
  float scale = 1.0f / SQRT(group_sum(VSUM(many) + one, scratch) / (float)n + eps);
  ELEMENTS(i, 0, n, unit, { VSTORE((VLOAD(xr + i * sx) - mean) * scale, yr + i * sy); },
           { F32_AT(yr + i * sy) = (READ_F32(xr + i * sx) - mean) * scale; });
}

/* The same, RMS, times w, which is broadcast by strides of 0; y may be w as well. */
KERNEL(norm_mul_rows)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *w, Tens tw, GLOBAL u8 *y, Tens ty,
                      float eps) {
  LOCAL float scratch[LANES];
  GLOBAL const u8 *xr = x + row_offset(tx, GROUP(0));
  GLOBAL const u8 *wr = w + row_offset(tw, GROUP(0));
  GLOBAL u8 *yr = y + row_offset(ty, GROUP(0));
  i64 sx = tx.s[3], sw = tw.s[3], sy = ty.s[3];
  int n = tx.n[3];
  float one = 0.0f;
  vf many = VSPLAT(0.0f);
  ELEMENTS(i, 0, n, sx == 4,
           {
             vf d = VLOAD(xr + i * sx);
             many += d * d;
           },
           {
             float d = READ_F32(xr + i * sx);
             one += d * d;
           });
  float scale = 1.0f / SQRT(group_sum(VSUM(many) + one, scratch) / (float)n + eps);
  ELEMENTS(i, 0, n, sx == 4 && sw == 4 && sy == 4,
           { VSTORE(VLOAD(xr + i * sx) * scale * VLOAD(wr + i * sw), yr + i * sy); },
           { F32_AT(yr + i * sy) = READ_F32(xr + i * sx) * scale * READ_F32(wr + i * sw); });
}

KERNEL(sum_rows)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty) {
  LOCAL float scratch[LANES];
  GLOBAL const u8 *xr = x + row_offset(tx, GROUP(0));
  i64 sx = tx.s[3];
  float one = 0.0f;
  vf many = VSPLAT(0.0f);
  ELEMENTS(i, 0, tx.n[3], sx == 4, { many += VLOAD(xr + i * sx); }, { one += READ_F32(xr + i * sx); });
  float sum = group_sum(VSUM(many) + one, scratch);
  if (LANE == 0) F32_AT(y + row_offset(ty, GROUP(0))) = sum;
}

/* The same for few elements, as of the experts of a token: a lane has a row, its neighbours the next ones. */
KERNEL(sum_short_rows)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int rows) {
  int row = GROUP(0) * LANES + LANE;
  if (row >= rows) return;
  GLOBAL const u8 *xr = x + row_offset(tx, row);
  float sum = 0.0f;
  for (int i = 0; i < tx.n[3]; i++) sum += READ_F32(xr + i * tx.s[3]);
  F32_AT(y + row_offset(ty, row)) = sum;
}
