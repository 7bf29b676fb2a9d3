/* A few nodes of few elements, one after the other: what unary and binary would do, by one group. Behind the text of
 * elementwise.cl, whose ops these are; binary ones are OPS of BINARY and more.
 *
 * STEPS of them. Results may lie wherever those of the nodes may: what an op reads is there when the barrier in front
 * of it has been passed, and a lane reads an element's operands before it writes the element.
 */
#define BINARY 16
#define STEP_(i)                                                                                                     \
  GLOBAL const u8 *a##i, Tens ta##i, GLOBAL const u8 *b##i, Tens tb##i, GLOBAL u8 *y##i, Tens ty##i, int op##i,       \
      float p##i, float q##i

FN const u8 *element_(const u8 *p, Tens t, int row, int i) {
  i64 rows = t.n[0] * t.n[1] == 1 ? t.off + row * t.s[2] : row_offset(t, row); /* divisions take longer than all else */
  return p + rows + i * t.s[3];
}

FN void step_(const u8 *a, Tens ta, const u8 *b, Tens tb, u8 *y, Tens ty, int op, float p, float q) {
  int n = ty.n[3], size = ty.n[0] * ty.n[1] * ty.n[2] * n;
  for (int e = LANE; e < size; e += LANES) {
    int row = n == size ? 0 : (int)((u32)e / (u32)n), i = e - row * n;
    float x = READ_F32(element_(a, ta, row, i));
    if (op < BINARY)
      x = unary1(op, x, p, q);
    else
      x = binary1(op - BINARY, x, READ_F32(element_(b, tb, row, i)), p, q);
    F32_AT((u8 *)element_(y, ty, row, i)) = x;
  }
}

#define DO_(i) step_(a##i, ta##i, b##i, tb##i, y##i, ty##i, op##i, p##i, q##i)

KERNEL(elements)(STEP_(0), STEP_(1)
#if STEPS > 2
                 , STEP_(2)
#endif
#if STEPS > 3
                 , STEP_(3)
#endif
#if STEPS > 4
                 , STEP_(4)
#endif
#if STEPS > 5
                 , STEP_(5)
#endif
) {
  DO_(0);
  BARRIER();
  DO_(1);
#if STEPS > 2
  BARRIER();
  DO_(2);
#endif
#if STEPS > 3
  BARRIER();
  DO_(3);
#endif
#if STEPS > 4
  BARRIER();
  DO_(4);
#endif
#if STEPS > 5
  BARRIER();
  DO_(5);
#endif
}
