/* Blocks of weights times floats, in integers, on units that multiply matrices of bytes: a piece of 32 at a time,
 * of which a block has PER_BLOCK.
 *
 * The floats of a piece are rounded to multiples of 2^-22 of a power of two that is larger than all of
 * them, and each multiple is written with three signed digits of 8 bits: three columns of bytes. Weights
 * become bytes without being converted, all sums of a piece are exact, and the rounding is that of floats as
 * large as the largest of the block. (Splitting one factor into parts that the unit takes is the method of
 * Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication", 2012.)
 *
 * The bytes of q8_0, q4_0 and mxfp4 are made by code of their own. Those of all other types are put together from
 * CODE_FIELDS, the bit fields of their layouts (block_bytes.py); a piece has PARTS scales, of 32 or 16 elements each,
 * and what is added to its elements (HAS_MIN) is multiplied with sums of the floats.
 */
#if defined(BLOCK_NBYTES)
#define DIGITS 3
#define PLANE 8 /* words of a digit of a piece */
#define PER_BLOCK (BLOCK_ELEMENTS / 32)
#ifndef PARTS
#define PARTS 1
#endif
#if defined(MIN_AT)
#define HAS_MIN 1
#else
#define HAS_MIN 0
#endif

/* Element of a piece whose digit is byte j of word i, so that a lane's words follow each other: those that
 * are multiplied with what it unpacks from word i / 2 of q4_0 and mxfp4. */
#if defined(W_MXFP4)
#define ELEMENT(i, j) ((j) % 2 * 16 + (i) * 2 + (j) / 2)
#else
#define ELEMENT(i, j) ((i) % 2 * 16 + (i) / 2 * 4 + (j))
#endif
/* The same by byte of both words, as number of a float of lane t: 4 t .. 4 t + 3, and 16 + 4 t .. of a piece. */
#if defined(W_MXFP4)
#define OF_BYTE(j) ((j) % 2 * 4 + (j) / 4 * 2 + (j) / 2 % 2)
#else
#define OF_BYTE(j) (j)
#endif
#define HEAD CODES_AT /* bytes before the numbers */

/* Of a piece whose largest magnitude has the bits `top`: its unit, NaN for infinities and NaN, and what floats are multiplied with. */
FN float unit_of(u32 top) { return FLOAT_OF_BITS(top >> 23 == 255u ? 0x7fc00000u : (MAX(top >> 23, 22u) - 21u) << 23); }
FN float per_unit_of(u32 top) { return top >> 23 == 255u ? 0.0f : FLOAT_OF_BITS((275u - MAX(top >> 23, 22u)) << 23); }

/* Three digits, a byte each. Adding 1.5 * 2^23 rounds to an integer; adding half of each digit's range makes digits signed. */
FN u32 digits_of(float v, float per_unit) { return BITS_OF_FLOAT(v * per_unit + 12582912.0f) - 0x4b400000u + 0x00808080u; }

/* Digits of word `i` of a piece, whose elements are `v`: to[0] for the highest, to[PLANE] and to[2 * PLANE]
 * for the others. The eight lanes that have the words of a piece return its unit, NaN if it holds an
 * infinity or a NaN; with HAS_MIN `sum` gets the sum of its elements, or of those of the lane's part. */
FN float split_word(LOCAL_PTR u32 *to, float *sum, int exists, const float *v, LOCAL_PTR float *scratch) {
  u32 top = 0u; /* bits of the largest magnitude, in whose order infinities and NaN come last */
  UNROLL for (int j = 0; j < 4; j++) {
    u32 size = BITS_OF_FLOAT(v[j]) & 0x7fffffffu;
    top = MAX(top, size);
  }
  UNROLL_MEETING for (int mask = 1; mask < PLANE; mask *= 2) {
    u32 other = BITS_OF_FLOAT(EXCHANGED(FLOAT_OF_BITS(top), mask, scratch));
    top = MAX(top, other);
  }
  float per_unit = per_unit_of(top), unit = unit_of(top);
  u32 digits[4];
  UNROLL for (int j = 0; j < 4; j++) digits[j] = digits_of(v[j], per_unit);
  if (exists) {
    UNROLL for (int d = 0; d < DIGITS; d++) {
      u32 pair = (u32)(d | (d + 4) << 4);
      u32 low = PERMUTED(digits[0], digits[1], pair), high = PERMUTED(digits[2], digits[3], pair);
      to[(2 - d) * PLANE] = PERMUTED(low, high, 0x5410u) ^ 0x80808080u;
    }
  }
#if HAS_MIN
  int units = -4 * 0x00808080;
  UNROLL for (int j = 0; j < 4; j++) units += (int)digits[j];
  *sum = (float)units; /* of integers up to 2^24, exact; so are the sums of two, and others are rounded */
  UNROLL_MEETING for (int mask = PARTS; mask < PLANE; mask *= 2) *sum += EXCHANGED(*sum, mask, scratch);
  *sum *= unit;
#endif
  return unit;
}

#if IN_PLACE
/* Blocks are read where they are. */
#define BLOCK_PTR GLOBAL
/* The word at byte `at`, wherever that is. */
FN u32 word_at(GLOBAL const u8 *memory, int at) {
  u64 begin = (u64)(memory + at);
  GLOBAL const u32 *from = (GLOBAL const u32 *)(begin & ~(u64)3);
  return FUNNEL(from[0], from[begin % 4 > 0], (int)(begin % 4) * 8);
}
#else
#define BLOCK_PTR LOCAL_PTR
/* The word at byte `at` of aligned local memory. */
FN u32 word_at(LOCAL_PTR const u8 *memory, int at) {
  LOCAL_PTR const u32 *from = (LOCAL_PTR const u32 *)memory + at / 4;
  return at % 4 ? FUNNEL(from[0], from[1], at % 4 * 8) : from[0];
}
#endif

#if defined(CODE_FIELDS)
#if defined(TABLE_0)
/* Four numbers of a table of 16, by indices in bytes. */
FN u32 looked_up(u32 codes) {
  u32 index = PERMUTED(codes | codes >> 4, 0u, 0x4420u), which = (index >> 1) & 0x4444u;
  index &= 0x7777u;
  return PERMUTED(PERMUTED(TABLE_0, TABLE_1, index), PERMUTED(TABLE_2, TABLE_3, index), which | 0x3210u);
}
#define BYTES_OF(codes) looked_up(codes)
#else
#define BYTES_OF(codes) ((codes) ^ BYTE_FLIP)
#endif
/* Four bits as the lowest ones of four bytes. */
#define SPREAD_BITS(bits) (((bits)&15u) * 0x00204081u & 0x01010101u)
#if GRANULE >= 4
#define WORD_AT(memory, at) (*(BLOCK_PTR const u32 *)((memory) + (at)))
#else
#define WORD_AT(memory, at) word_at((memory), (at))
#endif
#endif

#if defined(W_Q4_0)
/* Those of eight numbers of 4 bits: n - 8 in the upper half of a byte is 16 times that. */
FN void unpack_raw(u32 *first, u32 *second, u32 raw) {
  *first = ((raw << 4) ^ 0x88888888u) & 0xf0f0f0f0u;
  *second = (raw ^ 0x88888888u) & 0xf0f0f0f0u;
}
#elif defined(W_MXFP4)
/* Twice the numbers, looked up four at a time: bit 3 of a nibble chooses between two tables. */
FN void unpack_raw(u32 *first, u32 *second, u32 raw) {
  u32 which = (raw >> 1) & 0x44444444u, index = raw & 0x77777777u;
  u32 plus = PERMUTED(0x03020100u, 0x0c080604u, index & 0xffffu);
  u32 minus = PERMUTED(0xfdfeff00u, 0xf4f8fafcu, index & 0xffffu);
  *first = PERMUTED(plus, minus, (which & 0xffffu) | 0x3210u);
  plus = PERMUTED(0x03020100u, 0x0c080604u, index >> 16);
  minus = PERMUTED(0xfdfeff00u, 0xf4f8fafcu, index >> 16);
  *second = PERMUTED(plus, minus, (which >> 16) | 0x3210u);
}
#endif

/* Two words of signed bytes of piece `s` of a block that begins `at`, for lane `t` of four: those that are multiplied
 * with words 2 t and 2 t + 1 of digits. */
FN void unpack_words(u32 *first, u32 *second, BLOCK_PTR const u8 *memory, int at, int s, int t) {
#if defined(CODE_FIELDS)
  u32 low = 0u, high = 0u;
#define WORDS_OF_FIELD(from, words, shift, width, mask, up)                                               \
  low |= ((WORD_AT(memory, at + (from) + t * 4) >> (shift)) & (mask)) << (up);                             \
  high |= ((WORD_AT(memory, at + (from) + (t + 4 % (words)) * 4) >> ((shift) + 4 / (words) * (width))) & (mask)) << (up);
#define WORDS_OF_BITS(from, up)                          \
  u32 bits = WORD_AT(memory, at + (from)) >> t * 4;      \
  low |= SPREAD_BITS(bits) << (up);                      \
  high |= SPREAD_BITS(bits >> 16) << (up);
  CODE_FIELDS(WORDS_OF_FIELD, WORDS_OF_BITS, s)
  *first = BYTES_OF(low), *second = BYTES_OF(high);
#elif defined(W_Q8_0)
  *first = word_at(memory + t * 4, at + HEAD);
  *second = word_at(memory + t * 4, at + HEAD + 16);
#else
  unpack_raw(first, second, word_at(memory + t * 4, at + HEAD));
#endif
}

/* What the bytes of part `s` of a block are to be multiplied with. */
FN float block_scale(BLOCK_PTR const u8 *block, int s) {
#if defined(CODE_FIELDS)
  float scale = FLOAT_OF_HALF(*(BLOCK_PTR const u16 *)(block + SCALE_AT)) * BYTE_UNIT;
#if defined(PART_SCALE)
  scale *= (float)(PART_SCALE(block, s));
#endif
  return scale;
#elif defined(W_Q8_0)
  return FLOAT_OF_HALF(*(BLOCK_PTR const u16 *)block);
#elif defined(W_Q4_0)
  return FLOAT_OF_HALF(*(BLOCK_PTR const u16 *)block) * 0.0625f;
#else
  return half_scale(block[0]);
#endif
}

#if HAS_MIN
/* What is added to the elements of part `s` of a block. */
FN float block_min(BLOCK_PTR const u8 *block, int s) {
  float min = FLOAT_OF_HALF(*(BLOCK_PTR const u16 *)(block + MIN_AT));
#if defined(PART_MIN)
  min *= (float)(PART_MIN(block, s));
#endif
  return min;
}
#endif
#endif
