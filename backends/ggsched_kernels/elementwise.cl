/* y = f(a) and y = f(a, b), element by element; y may be a or b.
 *
 * Groups: (rows, last axis / span). `b` is broadcast by strides of 0.
 */
#define SCALE 0
#define CLAMP 1
#define SILU 2
#define GELU 3
#define SIGMOID_OF 4
#define TANH_OF 5
#define SOFTPLUS 6
#define ADD 0
#define SUB 1
#define MUL 2
#define DIV 3
#define SWIGLU 4
#define SWIGLU_OAI 5

#define SIGMOID(E, x) (1.0f / (E(-(x)) + 1.0f))
#define GELU_ANGLE(x) (((x) * (x) * 0.044715f + 1.0f) * (x) * 0.7978845608028654f)

FN vf vunary(int op, vf a, float p0, float p1) {
  if (op == SCALE) return a * p0 + p1;
  if (op == CLAMP) {
    a = VSELECT(a < p0, VSPLAT(p0), a);
    return VSELECT(a > p1, VSPLAT(p1), a);
  }
  if (op == SILU) return a / (VEXP(-a) + 1.0f);
  if (op == SIGMOID_OF) return VSPLAT(1.0f) / (VEXP(-a) + 1.0f);
  if (op == TANH_OF) return VTANH(a);
  if (op == SOFTPLUS) return VMAX(a, VSPLAT(0.0f)) + VLOG1P(VEXP(VMIN(a, -a)));
  return a / (VEXP(GELU_ANGLE(a) * -2.0f) + 1.0f); /* tanh may miss -1 by a bit, times a */
}

FN float unary1(int op, float a, float p0, float p1) {
  if (op == SCALE) return a * p0 + p1;
  if (op == CLAMP) return MIN(p1, MAX(p0, a)); /* in this order NaN stays (LCH-3) */
  if (op == SILU) return a / (EXP(-a) + 1.0f);
  if (op == SIGMOID_OF) return 1.0f / (EXP(-a) + 1.0f);
  if (op == TANH_OF) return TANH(a);
  if (op == SOFTPLUS) return MAX(a, 0.0f) + LOG1P(EXP(MIN(a, -a)));
  return a / (EXP(GELU_ANGLE(a) * -2.0f) + 1.0f);
}

FN vf vbinary(int op, vf a, vf b, float p0, float p1) {
  if (op == ADD) return a + b;
  if (op == SUB) return a - b;
  if (op == MUL) return a * b;
  if (op == DIV) return a / b;
  if (op == SWIGLU) return a / (VEXP(-a) + 1.0f) * b;
  a = VSELECT(a > p1, VSPLAT(p1), a);
  b = VSELECT(b > p1, VSPLAT(p1), b);
  b = VSELECT(b < -p1, VSPLAT(-p1), b);
  return a / (VEXP(-a * p0) + 1.0f) * (b + 1.0f);
}

FN float binary1(int op, float a, float b, float p0, float p1) {
  if (op == ADD) return a + b;
  if (op == SUB) return a - b;
  if (op == MUL) return a * b;
  if (op == DIV) return a / b;
  if (op == SWIGLU) return a / (EXP(-a) + 1.0f) * b;
  a = MIN(p1, a);
  b = MAX(-p1, MIN(p1, b));
  return a / (EXP(-a * p0) + 1.0f) * (b + 1.0f);
}

KERNEL(unary)(GLOBAL const u8 *a, Tens ta, GLOBAL u8 *y, Tens ty, int op, float p0, float p1, int span) {
  int from = PART * span, to = MIN(from + span, ty.n[3]);
  GLOBAL const u8 *ar = a + row_offset(ta, ROW);
  GLOBAL u8 *yr = y + row_offset(ty, ROW);
  i64 sa = ta.s[3], sy = ty.s[3];
  ELEMENTS(i, from, to, sa == 4 && sy == 4,
           { VSTORE(vunary(op, VLOAD(ar + i * sa), p0, p1), yr + i * sy); },
           { F32_AT(yr + i * sy) = unary1(op, READ_F32(ar + i * sa), p0, p1); });
}

KERNEL(binary)(GLOBAL const u8 *a, Tens ta, GLOBAL const u8 *b, Tens tb, GLOBAL u8 *y, Tens ty,
               int op, float p0, float p1, int span) {
  int from = PART * span, to = MIN(from + span, ty.n[3]);
  GLOBAL const u8 *ar = a + row_offset(ta, ROW);
  GLOBAL const u8 *br = b + row_offset(tb, ROW);
  GLOBAL u8 *yr = y + row_offset(ty, ROW);
  i64 sa = ta.s[3], sb = tb.s[3], sy = ty.s[3];
  ELEMENTS(i, from, to, sa == 4 && sy == 4 && (sb == 4 || sb == 0),
           {
             vf bv = sb ? VLOAD(br + i * sb) : VSPLAT(READ_F32(br));
             VSTORE(vbinary(op, VLOAD(ar + i * sa), bv, p0, p1), yr + i * sy);
           },
           { F32_AT(yr + i * sy) = binary1(op, READ_F32(ar + i * sa), READ_F32(br + i * sb), p0, p1); });
}
