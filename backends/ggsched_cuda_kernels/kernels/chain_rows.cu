/* A chain of ops, see array_chain.cl, whose result lies without gaps; with HALVES besides as bf16, for the product that follows. Behind
 * the text of the chain and halves.h.
 *
 * Thread blocks: (elements / (4 * LANES)). A lane computes four neighbours of a row of n elements. STEP of an operand is 2 where it lies
 * like the result, 1 where it has an element for each column, 0 where it has one. */
#define FOUR_AT(p) (*(GLOBAL const float4 *)(p))
FN float4 four_of(GLOBAL const u8 *p, int step, i64 at, i64 column) {
  if (step) return FOUR_AT(p + (step == 2 ? at : column) * 4);
  float one = READ_AT(float, p);
  return make_float4(one, one, one, one);
}
#define TAKE(name, step, p)                                      \
  float4 four_##name = four_of((p), (step), at, column);         \
  float name[4] = {four_##name.x, four_##name.y, four_##name.z, four_##name.w};

KERNEL(chain_rows)(GLOBAL const u8 *a, i64 oa, GLOBAL const u8 *b, i64 ob, GLOBAL const u8 *c, i64 oc, GLOBAL u8 *y, i64 oy,
                   int count, int n, float Q0, float Q1, float Q2, GLOBAL u8 *halves) {
  i64 at = ((i64)GROUP(0) * LANES + LANE) * 4;
  if (at >= count) return;
  i64 column = (int)at % n;
  TAKE(first, STEP0, a + oa)
#if OPERANDS > 1
  TAKE(second, STEP1, b + ob)
#endif
#if OPERANDS > 2
  TAKE(third, STEP2, c + oc)
#endif
  float made[4];
  UNROLL for (int e = 0; e < 4; e++) {
    float X0 = first[e];
#if OPERANDS > 1
    float X1 = second[e];
#endif
#if OPERANDS > 2
    float X2 = third[e];
#endif
    float V;
    BODY
    made[e] = V;
  }
  float4 all = make_float4(made[0], made[1], made[2], made[3]);
  *(GLOBAL float4 *)(y + oy + at * 4) = all;
#if HALVES
  put_halves(halves, at, all);
#endif
}
