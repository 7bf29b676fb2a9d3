/* y = EXPR of elements A, B, C at the same place; operands are broadcast by strides of 0.
 *
 * Groups: (rows, last axis / span).
 */
KERNEL(elements)(GLOBAL const u8 *a, GLOBAL const u8 *b, GLOBAL const u8 *c, GLOBAL u8 *y, Nd t,
                 int span, float P0, float P1, float P2) {
  OFFSETS_OF_ROW(t)
  int from = PART * span;
  int to = MIN(t.n[7], from + span);
  for (int i = from + LANE; i < to; i += LANES) {
    VA A = CAT(R_, A_T)(a + oa + i * t.s[0][7]);
#if OPERANDS > 1
    VB B = CAT(R_, B_T)(b + ob + i * t.s[1][7]);
#endif
#if OPERANDS > 2
    VC C = CAT(R_, C_T)(c + oc + i * t.s[2][7]);
#endif
    VY made = (VY)(EXPR);
    CAT(W_, Y_T)(y + oy + i * t.s[3][7], made);
  }
}
