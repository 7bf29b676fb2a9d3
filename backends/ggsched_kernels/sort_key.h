/* Floats as integers in the order of numpy's sort: -0 equals 0, NaN comes last. */
FN i32 sort_key(float x, int descending) {
  if (x != x) return 0x7fffffff;
  if (descending) x = -x;
  i32 bits = (i32)BITS_OF_FLOAT(x);
  if ((bits & 0x7fffffff) == 0) return 0;
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
