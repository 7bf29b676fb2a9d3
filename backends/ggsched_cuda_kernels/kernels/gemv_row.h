/* The row that a group multiplies with weights. All lanes load it, each number once, and put it into local memory as it
 * is multiplied, and there each lane takes what it keeps. (Lanes that loaded all that they keep took as long as a third
 * of the product: they read places far apart, and wrote the same digits once for each team.)
 *
 * Plain types are multiplied as floats. Blocks are multiplied as integers: the floats of 32 elements are
 * rounded to multiples of 2^-22 of a power of two that is larger than all of them and written with three
 * signed digits of 8 bits, so that four products take one instruction for each digit, and sums are exact
 * (see blocks.h, where the same is done for units that multiply matrices).
 *
 * In local memory: NK floats; or the lowest digits of all NK numbers, the middle and the highest ones, and
 * the unit of each 32.
 */
#define QUADS ((NK / 4 + LANES - 1) / LANES) /* of a lane: every LANES-th four numbers */

/* Zeros behind the end of the row, so that all lanes can do the same. */
FN void load_quads(float4 *to, const u8 *from) {
  UNROLL for (int j = 0; j < QUADS; j++) {
    int i = j * LANES + LANE;
    to[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i < NK / 4) to[j] = ((const float4 *)from)[i];
  }
}

/* The sums of rows that lie `step` bytes apart, and of another row; group 0 writes them to y, and the sum of all rows but
 * the last and the other one to `part`, if that is not null. */
FN void add_up(float4 *to, const u8 *rows, i64 step, const u8 *base, u8 *y, u8 *part) {
  float4 terms[ADDENDS + 1][QUADS];
  UNROLL for (int u = 0; u < ADDENDS; u++) load_quads(terms[u], rows + u * step);
  load_quads(terms[ADDENDS], base);
  UNROLL for (int j = 0; j < QUADS; j++) {
    int i = j * LANES + LANE, is_mine = GROUP(0) == 0 && i < NK / 4;
    float4 sum = terms[0][j];
    UNROLL for (int u = 1; u <= ADDENDS; u++) {
      if (u == ADDENDS - 1 && part != 0 && is_mine) ((float4 *)part)[i] = sum;
      sum.x += terms[u][j].x, sum.y += terms[u][j].y, sum.z += terms[u][j].z, sum.w += terms[u][j].w;
    }
    to[j] = sum;
    if (is_mine) ((float4 *)y)[i] = sum;
  }
}

/* Scale x to rms_norm(x) * w; group 0 writes it to y. */
FN void normalise(float4 *x, const float4 *w, u8 *y, float eps, float *scratch) {
  float sum = 0.0f;
  UNROLL for (int j = 0; j < QUADS; j++) sum += x[j].x * x[j].x + x[j].y * x[j].y + x[j].z * x[j].z + x[j].w * x[j].w;
  UNROLL for (int step = 16; step > 0; step /= 2) sum += EXCHANGED(sum, step, scratch);
  if (WARP_LANE == 0) scratch[WARP_INDEX] = sum;
  MEET(LANES);
  sum = 0.0f;
  UNROLL for (int i = 0; i < WARPS; i++) sum += scratch[i];
  float scale = 1.0f / SQRT(sum / (float)NK + eps);
  UNROLL for (int j = 0; j < QUADS; j++) {
    int i = j * LANES + LANE;
    x[j].x = x[j].x * scale * w[j].x, x[j].y = x[j].y * scale * w[j].y;
    x[j].z = x[j].z * scale * w[j].z, x[j].w = x[j].w * scale * w[j].w;
    if (GROUP(0) == 0 && i < NK / 4) ((float4 *)y)[i] = x[j];
  }
}

#if defined(BLOCK_NBYTES)
#define ROW_NBYTES (NK / BLOCK_ELEMENTS * BLOCK_NBYTES)
#define UNITS_AT (DIGITS * NK)

/* Digit d of four numbers, given as units and half of each digit's range. */
FN u32 digit_of(const u32 *whole, int d) {
  u32 pair = (u32)(d | (d + 4) << 4);
  u32 low = PERMUTED(whole[0], whole[1], pair), high = PERMUTED(whole[2], whole[3], pair);
  return PERMUTED(low, high, 0x5410u) ^ 0x80808080u;
}

/* The larger one of this and another lane; bits of magnitudes, in whose order infinities and NaN come last. */
FN u32 top_with(u32 top, int step, float *scratch) {
  u32 other = BITS_OF_FLOAT(EXCHANGED(FLOAT_OF_BITS(top), step, scratch));
  return MAX(top, other);
}

FN void put_row(u8 *row, const float4 *x, float *scratch) {
  UNROLL for (int j = 0; j < QUADS; j++) {
    int i = j * LANES + LANE;
    float v[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
    u32 top = 22u << 23, whole[4]; /* at least 2^-105 */
    UNROLL for (int k = 0; k < 4; k++) top = MAX(top, BITS_OF_FLOAT(v[k]) & 0x7fffffffu);
    UNROLL for (int step = 1; step < 8; step *= 2) top = top_with(top, step, scratch); /* eight lanes have a block */
    u32 exponent = top >> 23;
    float per_unit = exponent == 255u ? 0.0f : FLOAT_OF_BITS((275u - exponent) << 23);
    float unit = FLOAT_OF_BITS(exponent == 255u ? 0x7fc00000u : (exponent - 21u) << 23);
    /* Adding 1.5 * 2^23 rounds to an integer; adding half of each digit's range makes digits signed. */
    UNROLL for (int k = 0; k < 4; k++)
      whole[k] = BITS_OF_FLOAT(v[k] * per_unit + 12582912.0f) - 0x4b400000u + 0x00808080u;
    if (i < NK / 4) {
      UNROLL for (int d = 0; d < DIGITS; d++) ((u32 *)(row + d * NK))[i] = digit_of(whole, d);
      if (LANE % 8 == 0) ((float *)(row + UNITS_AT))[i / 8] = unit;
    }
  }
  MEET(LANES);
}

FN float unit_at(const u8 *row, int block) { return ((const float *)(row + UNITS_AT))[block]; }

/* Two words of numbers of a block, 16 apart, as nibbles of both lie side by side: the first or the second half. */
FN u32 side_by_side(u32 low, u32 high, int half) { return PERMUTED(low, high, half ? 0x7362u : 0x5140u); }
#else
#define ROW_NBYTES (NK * W_NBYTES)

FN void put_row(u8 *row, const float4 *x, float *) {
  UNROLL for (int j = 0; j < QUADS; j++) {
    int i = j * LANES + LANE;
    if (i < NK / 4) ((float4 *)row)[i] = x[j];
  }
  MEET(LANES);
}
#endif
