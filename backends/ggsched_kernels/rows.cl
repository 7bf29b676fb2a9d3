/* Rows chosen by ids that come with the data. An id out of range touches no memory: its result is
 * zeros (set_rows: nothing is written), and the stream's `fault` reports it.
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

#define F16_ROWS 1
#define BF16_ROWS 2
#define Q8_0_ROWS 3
#define Q8_0_NBYTES 34

/* To nearest, ties to even. */
FN u32 bf16_of_float(float x) {
  u32 bits = BITS_OF_FLOAT(x);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

/* Correctly rounded, also where the language does not promise it. */
FN float quotient(float a, float b) {
  float q = a / b;
  return FMA(FMA(-q, b, a), 1.0f / b, q);
}

/* 32 floats, `step` bytes apart, as a block of q8_0: a scale in f16, and signed bytes, halves rounded away from zero. With
 * a number that is not finite all of it is NaN; where the scale is zero in f16, all of it is zeros. */
FN void store_q8_0(GLOBAL const u8 *x, i64 step, GLOBAL u8 *block) {
  float top = 0.0f, strange = 0.0f;
  for (int j = 0; j < 32; j++) {
    float v = READ_F32(x + j * step), size = v < 0.0f ? -v : v;
    top = MAX(top, size);
    strange += v - v;
  }
  int is_bad = strange != 0.0f;
  float scale = quotient(top, 127.0f);
  u32 stored = HALF_OF_FLOAT(scale);
  float inverse = stored == 0u || is_bad ? 0.0f : quotient(1.0f, scale);
  if (is_bad) stored = 0x7e00u;
  block[0] = (u8)(stored & 0xffu);
  block[1] = (u8)(stored >> 8);
  for (int j = 0; j < 32; j++) {
    float v = is_bad ? 0.0f : READ_F32(x + j * step), size = v < 0.0f ? -v : v;
    /* Not size * inverse - floor, which compilers may round otherwise. */
    int code = ((int)(size * inverse * 2.0f) + 1) >> 1;
    block[2 + j] = (u8)(v < 0.0f ? -code : code);
  }
}

/* dst[ids[i]] = src[i], dst of type `kind`, 0 for f32. `src` (1, 1, T, n), `ids` (1, 1, T, 1). */
KERNEL(set_rows)(GLOBAL u8 *dst, Tens td, GLOBAL const u8 *src, Tens ts, GLOBAL const u8 *ids,
                 Tens ti, int kind, int span, GLOBAL i32 *fault, int code) {
  int from = PART * span, to = MIN(from + span, ts.n[3]), row = ROW;
  int id = READ_I32(ids + row_offset(ti, row));
  if (bad_id(id, td.n[2], fault, code)) return;
  GLOBAL const u8 *xr = src + row_offset(ts, row);
  GLOBAL u8 *yr = dst + td.off + id * td.s[2];
  i64 sx = ts.s[3], sy = td.s[3];
  if (kind == Q8_0_ROWS) {
    for (int i = from / 32 + LANE; i < to / 32; i += LANES) store_q8_0(xr + i * 32 * sx, sx, yr + i * Q8_0_NBYTES);
  } else if (kind == BF16_ROWS) {
    for (int i = from + LANE; i < to; i += LANES) {
      *(GLOBAL u16 *)(yr + i * sy) = (u16)bf16_of_float(READ_F32(xr + i * sx));
    }
  } else if (kind == F16_ROWS) {
    ELEMENTS(i, from, to, sx == 4 && sy == 2, { VSTORE_HALF(VLOAD(xr + i * sx), yr + i * sy); },
             { *(GLOBAL u16 *)(yr + i * sy) = (u16)HALF_OF_FLOAT(READ_F32(xr + i * sx)); });
  } else {
    ELEMENTS(i, from, to, sx == 4 && sy == 4, { VSTORE(VLOAD(xr + i * sx), yr + i * sy); },
             { F32_AT(yr + i * sy) = READ_F32(xr + i * sx); });
  }
}

/* y[t, u] = x[t, u] + bias[ids[t, u] - first], or x[t, u] if that row is elsewhere; y may be x. `bias` (1, 1, E, n), `ids` (1, T, U, 1). */
KERNEL(add_id)(GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *bias, Tens tb, GLOBAL const u8 *ids,
               Tens ti, GLOBAL u8 *y, Tens ty, int span, int first, int of, GLOBAL i32 *fault, int code) {
  int from = PART * span, to = MIN(from + span, ty.n[3]), row = ROW;
  int id = row_here(READ_I32(ids + row_offset(ti, row)), first, of, tb.n[2], fault, code);
  GLOBAL const u8 *xr = x + row_offset(tx, row);
  GLOBAL u8 *yr = y + row_offset(ty, row);
  i64 sx = tx.s[3], sb = tb.s[3], sy = ty.s[3];
  if (id < 0) {
    for (int i = from + LANE; i < to; i += LANES) F32_AT(yr + i * sy) = READ_F32(xr + i * sx);
    return;
  }
  GLOBAL const u8 *br = bias + tb.off + id * tb.s[2];
  ELEMENTS(i, from, to, sx == 4 && sb == 4 && sy == 4,
           { VSTORE(VLOAD(xr + i * sx) + VLOAD(br + i * sb), yr + i * sy); },
           { F32_AT(yr + i * sy) = READ_F32(xr + i * sx) + READ_F32(br + i * sb); });
}
