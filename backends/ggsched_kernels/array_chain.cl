/* y = BODY of elements X0, X1, X2 at the same place: several ops, one on the result of another.
 *
 * Groups: (rows, last axis / span). BODY leaves the result in V.
 */
KERNEL(chain)(GLOBAL const u8 *a, GLOBAL const u8 *b, GLOBAL const u8 *c, GLOBAL u8 *y, Nd t,
              int span, float Q0, float Q1, float Q2) {
  OFFSETS_OF_ROW(t)
  int from = PART * span;
  int to = MIN(t.n[7], from + span);
  for (int i = from + LANE; i < to; i += LANES) {
    float X0 = R_f32(a + oa + i * t.s[0][7]);
#if OPERANDS > 1
    float X1 = R_f32(b + ob + i * t.s[1][7]);
#endif
#if OPERANDS > 2
    float X2 = R_f32(c + oc + i * t.s[2][7]);
#endif
    float V;
    BODY
    W_f32(y + oy + i * t.s[3][7], V);
  }
}
