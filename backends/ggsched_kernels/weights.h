/* Reading a packed type, chosen by one of W_F32, W_F16, W_BF16, and W_ with the name of a block type.
 *
 * WLOAD(row, k): elements k .. k+VW-1, as floats, of the row that starts at byte pointer `row`;
 *     k is a multiple of VW.
 * WITEM(row, k): element k.
 * W_NBYTES: bytes of an element; 0 for block types, which have two more, k a multiple of 32:
 * wdot(row, k, x): sums of products of the 32 elements at k with the 32 floats at x.
 * wunpack(row, k, to): the 32 elements at k as floats in local memory.
 */
#if defined(W_F32)
#define W_NBYTES 4
#define WLOAD(row, k) VLOAD((GLOBAL const float *)(row) + (k))
#define WITEM(row, k) (((GLOBAL const float *)(row))[k])
#elif defined(W_F16)
#define W_NBYTES 2
#define WLOAD(row, k) VLOAD_HALF((GLOBAL const u16 *)(row) + (k))
#define WITEM(row, k) FLOAT_OF_HALF(((GLOBAL const u16 *)(row))[k])
#elif defined(W_BF16)
#define W_NBYTES 2
#define WLOAD(row, k) VFLOAT_OF_BITS(VLOAD_U16((GLOBAL const u16 *)(row) + (k)) << 16)
#define WITEM(row, k) FLOAT_OF_BITS((u32)((GLOBAL const u16 *)(row))[k] << 16)
#else
#define W_NBYTES 0
#define BLOCK_OF(row, k) ((row) + (i64)((k) / BLOCK_ELEMENTS) * BLOCK_NBYTES)
#define WLOAD(row, k) wload(BLOCK_OF(row, k), (k) % BLOCK_ELEMENTS)
#define WITEM(row, k) witem(BLOCK_OF(row, k), (k) % BLOCK_ELEMENTS)

#if W_EVEN && VW == 4
/* On GPUs, where the host says that all blocks start at even addresses: two loads for four bytes. */
#undef VLOAD_I8
#undef VLOAD_U8
#define U16_AT(p, i) ((u32)((GLOBAL const u16 *)(p))[i])
#define FOUR_AT(p) VSPLAT_INT((int)(U16_AT(p, 0) | U16_AT(p, 1) << 16))
#define VLOAD_I8(p) VFLOAT_OF_INT((FOUR_AT(p) << (VSPLAT_INT(24) - (VIOTA << 3))) >> 24)
#define VLOAD_U8(p) ((FOUR_AT(p) >> (VIOTA << 3)) & 255)
#define HALF_AT(p) FLOAT_OF_HALF(U16_AT(p, 0))
#else
/* Blocks start at odd addresses, so a scale is put together from its bytes. */
#define HALF_AT(p) FLOAT_OF_HALF((u32)(p)[0] | (u32)(p)[1] << 8)
#endif

#if defined(PART_ELEMENTS)
/* Blocks of parts of 16 or 32 elements. CODES gives the stored integers, of a vector of elements or of
 * one, by the load that it is given; PART_SCALE and PART_MIN are integers of part s, which the block's scale
 * and minimum are multiplied with. */
#define BYTE(p) ((int)(p)[0])
#if defined(TABLE_0)
/* The integers are indices of 16 signed bytes, which are packed in four words. */
FN vi words(vi n) {
  vi low = VSELECT(n < 4, VSPLAT_INT((int)TABLE_0), VSPLAT_INT((int)TABLE_1));
  vi high = VSELECT(n < 12, VSPLAT_INT((int)TABLE_2), VSPLAT_INT((int)TABLE_3));
  return VSELECT(n < 8, low, high);
}
FN vf unpacked(vi n) { return VFLOAT_OF_INT((words(n) << (VSPLAT_INT(24) - ((n & 3) << 3))) >> 24); }
FN float unpacked1(int n) {
  u32 word = n < 8 ? (n < 4 ? TABLE_0 : TABLE_1) : (n < 12 ? TABLE_2 : TABLE_3);
  return (float)(i8)(word >> (n & 3) * 8);
}
#else
FN vf unpacked(vi codes) { return VFLOAT_OF_INT(codes - ZERO); }
FN float unpacked1(int code) { return (float)(code - ZERO); }
#endif
#define MANY(block, j) unpacked(CODES(VLOAD_U8, block, j))
#define ONE(block, j) unpacked1(CODES(BYTE, block, j))
#if defined(PART_SCALE)
FN float part_scale(GLOBAL const u8 *block, u32 s) { return HALF_AT(block + SCALE_AT) * (float)(PART_SCALE(block, s)); }
#else
FN float part_scale(GLOBAL const u8 *block, u32 s) { return HALF_AT(block + SCALE_AT); }
#endif
#if defined(MIN_AT)
FN float part_min(GLOBAL const u8 *block, u32 s) { return HALF_AT(block + MIN_AT) * (float)(PART_MIN(block, s)); }
#define PLUS_PART_MIN(block, s) + part_min(block, s)
#else
#define PLUS_PART_MIN(block, s)
#endif

FN vf wload(GLOBAL const u8 *block, u32 j) {
  return MANY(block, j) * part_scale(block, j / PART_ELEMENTS) PLUS_PART_MIN(block, j / PART_ELEMENTS);
}
FN float witem(GLOBAL const u8 *block, u32 j) {
  return ONE(block, j) * part_scale(block, j / PART_ELEMENTS) PLUS_PART_MIN(block, j / PART_ELEMENTS);
}
/* Where a vector has more bytes than integers, bits are put together in bytes, and then become integers. */
#ifdef LOAD_BYTES
#ifdef INTS_OF_BYTES
#define BYTES_FIRST (PART_ELEMENTS % 16 == 0)
#if defined(TABLE_0)
#ifdef LOOKED_UP
#define UNPACKED(codes, upper) \
  VFLOAT_OF_INT(INTS_OF_BYTES(LOOKED_UP(TABLE_0, TABLE_1, TABLE_2, TABLE_3, (codes)), (upper)))
#endif
#endif
#ifndef UNPACKED
#define UNPACKED(codes, upper) unpacked(INTS_OF_BYTES((codes), (upper)))
#endif
#endif
#endif
/* That of the 32 elements at `begin` of a block. */
FN vf wdot_piece(GLOBAL const u8 *block, u32 begin, GLOBAL const float *x) {
  vf sum = VSPLAT(0.0f);
  UNROLL for (int p = 0; p < 32; p += PART_ELEMENTS) {
    vf part = VSPLAT(0.0f), all = part;
#if BYTES_FIRST
    UNROLL for (int j = 0; j < PART_ELEMENTS; j += 16) {
      bytes_any codes = CODES(LOAD_BYTES, block, begin + p + j);
      UNROLL for (int upper = 0; upper < 2; upper++) {
        vf xs = VLOAD(x + p + j + 8 * upper);
        part += UNPACKED(codes, upper) * xs;
        all += xs;
      }
    }
#else
    UNROLL for (int j = 0; j < PART_ELEMENTS; j += VW) {
      vf xs = VLOAD(x + p + j);
      part += MANY(block, begin + p + j) * xs;
      all += xs;
    }
#endif
    sum += part * part_scale(block, (begin + p) / PART_ELEMENTS);
#if defined(MIN_AT)
    sum += all * part_min(block, (begin + p) / PART_ELEMENTS);
#endif
  }
  return sum;
}
FN vf wdot(GLOBAL const u8 *row, int k, GLOBAL const float *x) {
  return wdot_piece(BLOCK_OF(row, k), (u32)k % BLOCK_ELEMENTS, x);
}
FN void wunpack(GLOBAL const u8 *row, int k, LOCAL_PTR float *to) {
  GLOBAL const u8 *block = BLOCK_OF(row, k);
  u32 begin = (u32)k % BLOCK_ELEMENTS;
  UNROLL for (int j = 0; j < 32; j += VW) VSTORE_LOCAL(wload(block, begin + j), to + j);
}
#else
/* The constants of a block type come from its layout (block_constants.py). SCALE_OF(block) is its scale, and
 * HALF_AT(block + MIN_AT) is added to each element where MIN_AT is defined. Codes are unpacked before they are scaled: many at j (MANY), one at j (ONE), or all of them,
 * EACH(j, vector) for each vector (WHOLE). */
#if defined(CODES_I8)
/* 32 signed bytes. */
#define MANY(block, j) VLOAD_I8((block) + CODES_AT + (j))
#define ONE(block, j) ((float)((GLOBAL const i8 *)(block))[CODES_AT + (j)])
#define WHOLE(block, EACH) UNROLL for (int j = 0; j < 32; j += VW) EACH(j, MANY(block, j))

#else
/* 16 bytes of nibbles; elements 0..15 in the low halves, 16..31 in the high ones. */
#define NIBBLES(block, j) (VLOAD_U8((block) + CODES_AT + (j) % 16) >> ((j) & 16) / 4)
#define NIBBLE(block, j) (((block)[CODES_AT + (j) % 16] >> ((j) & 16) / 4) & 15)
#if defined(FIFTH_AT)
/* A fifth bit of each element, in one word. */
FN u32 fifth_bits(GLOBAL const u8 *block) {
  GLOBAL const u8 *p = block + FIFTH_AT;
  return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}
FN vi fifths(u32 bits, int j) { return ((VSPLAT_INT((int)(bits >> j)) >> VIOTA) & 1) << 4; }
#define FIFTHS(block, j) | fifths(fifth_bits(block), (j))
#define FIFTH(block, j) | (int)(fifth_bits(block) >> (j) & 1u) << 4
#else
#define FIFTHS(block, j)
#define FIFTH(block, j)
#endif
#define MANY(block, j) unpacked((NIBBLES(block, j) & 15) FIFTHS(block, j))
#define ONE(block, j) unpacked1(NIBBLE(block, j) FIFTH(block, j))
#define WHOLE(block, EACH)                                    \
  UNROLL for (int j = 0; j < 16; j += VW) {                   \
    vi both = VLOAD_U8((block) + CODES_AT + j);               \
    EACH(j, unpacked((both & 15) FIFTHS(block, j)));          \
    EACH(j + 16, unpacked((both >> 4) FIFTHS(block, j + 16))); \
  }
#if defined(CODES_E2M1)
/* An exponent byte e for the scale 2^(e-127); e2m1 numbers, sign in the highest bit. Twice their
 * magnitudes are small integers, 0 1 2 3 4 6 8 12, so take half the scale. */
#define SCALE_OF(block) half_scale((block)[SCALE_AT])
FN float half_scale(int e) { return FLOAT_OF_BITS(e < 2 ? 0x00200000u << e : (u32)(e - 1) << 23); }
#ifdef VLOOKUP8
FN vf unpacked(vi nibbles) {
  /* It looks at the lowest three bits. */
  vf magnitude = VLOOKUP8(nibbles, 0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 6.0f, 8.0f, 12.0f);
  return VFLOAT_OF_BITS(VBITS_OF_FLOAT(magnitude) | VBITS_OF_INT(nibbles & 8) << 28);
}
#else
FN vf unpacked(vi nibbles) {
  vi v = nibbles & 7;
  vi large = ((v & 1) + 2) << (((v >> 1) + 3) & 3);
  vi twice = VSELECT(v < 2, v, large);
  return VFLOAT_OF_INT(VSELECT((nibbles & 8) != 0, -twice, twice));
}
#endif
FN float unpacked1(int nibble) {
  int v = nibble & 7;
  int twice = v < 2 ? v : ((v & 1) + 2) << ((v >> 1) - 1);
  return (float)((nibble & 8) ? -twice : twice);
}
#else
FN vf unpacked(vi codes) { return VFLOAT_OF_INT(codes - ZERO); }
FN float unpacked1(int code) { return (float)(code - ZERO); }
#endif
#endif
#ifndef SCALE_OF
#define SCALE_OF(block) HALF_AT((block) + SCALE_AT)
#endif

#if defined(MIN_AT)
#define PLUS_MIN(block) + HALF_AT((block) + MIN_AT)
#else
#define PLUS_MIN(block)
#endif

FN vf wload(GLOBAL const u8 *block, int j) { return MANY(block, j) * SCALE_OF(block) PLUS_MIN(block); }
FN float witem(GLOBAL const u8 *block, int j) { return ONE(block, j) * SCALE_OF(block) PLUS_MIN(block); }
FN vf wdot(GLOBAL const u8 *row, int k, GLOBAL const float *x) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * BLOCK_NBYTES;
  vf sum = VSPLAT(0.0f);
#if defined(MIN_AT)
  vf all = VSPLAT(0.0f);
#define ADD_PRODUCT(j, v)      \
  do {                         \
    vf xs = VLOAD(x + (j));    \
    sum += (v) * xs, all += xs; \
  } while (0)
  WHOLE(block, ADD_PRODUCT);
  return sum * SCALE_OF(block) + all * HALF_AT(block + MIN_AT);
#else
#define ADD_PRODUCT(j, v) sum += (v) * VLOAD(x + (j))
  WHOLE(block, ADD_PRODUCT);
  return sum * SCALE_OF(block);
#endif
}
FN void wunpack(GLOBAL const u8 *row, int k, LOCAL_PTR float *to) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * BLOCK_NBYTES;
  float scale = SCALE_OF(block);
#define STORE_SCALED(j, v) VSTORE_LOCAL((v) * scale PLUS_MIN(block), to + (j))
  WHOLE(block, STORE_SCALED);
}
#endif
#endif
