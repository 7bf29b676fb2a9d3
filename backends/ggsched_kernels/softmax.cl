/* y = softmax(x * scale + mask) over the last axis; a sink adds exp(sink) to the denominator.
 *
 * One group takes one row; y may be x. `mask` is broadcast by strides of 0 and `sinks` has axes
 * (1, H, T, 1) with strides (0, s, 0, 0). Absent ones are flagged, their pointers are not used.
 */
#define MASK 1
#define SINKS 2

#define LOGITS(i) (VLOAD(xr + (i) * sx) * scale + (masked ? (sm ? VLOAD(mr + (i) * sm) : VSPLAT(READ_F32(mr))) : VSPLAT(0.0f)))
#define LOGIT(i) (READ_F32(xr + (i) * sx) * scale + (masked ? READ_F32(mr + (i) * sm) : 0.0f))

KERNEL(soft_max)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *sinks,
                 Tens ts, GLOBAL u8 *y, Tens ty, int has, float scale) {
  LOCAL float scratch[LANES];
  int row = GROUP(0), masked = has & MASK, n = tx.n[3];
  GLOBAL const u8 *xr = x + row_offset(tx, row);
  GLOBAL const u8 *mr = masked ? mask + row_offset(tm, row) : xr;
  GLOBAL u8 *yr = y + row_offset(ty, row);
  i64 sx = tx.s[3], sm = tm.s[3], sy = ty.s[3];
  int unit = sx == 4 && sy == 4 && (!masked || sm == 4 || sm == 0);
  float lowest = FLOAT_OF_BITS(0xff800000u);
  float sink = (has & SINKS) ? READ_F32(sinks + row_offset(ts, row)) : lowest;
  float one = sink;
  vf many = VSPLAT(lowest);
  ELEMENTS(i, 0, n, unit, { many = VMAX(many, LOGITS(i)); }, { one = MAX(one, LOGIT(i)); });
  float top = VTOP(many);
  top = group_top(MAX(top, one), scratch);
  many = VSPLAT(0.0f);
  one = 0.0f;
  ELEMENTS(i, 0, n, unit,
           {
             vf e = VEXP(LOGITS(i) - top);
             many += e;
             VSTORE(e, yr + i * sy);
           },
           {
             float e = EXP(LOGIT(i) - top);
             one += e;
             F32_AT(yr + i * sy) = e;
           });
  float sum = group_sum(VSUM(many) + one, scratch);
  float share = 1.0f / ((has & SINKS) ? sum + EXP(sink - top) : sum);
  ELEMENTS(i, 0, n, unit, { VSTORE(VLOAD(yr + i * sy) * share, yr + i * sy); }, { F32_AT(yr + i * sy) *= share; });
}
