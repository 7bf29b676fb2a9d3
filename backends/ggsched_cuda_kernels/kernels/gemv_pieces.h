/* What a lane keeps of x, and its products with pieces of a row of a weight in local memory. A row is PIECES
 * pieces of PIECE_ELEMS weights, several of which may be of one block; a lane of a team has every TEAM_LANES-th of them. (With TILES see gemv_tiles.h.)
 *
 * Blocks of q8_0 have 17 half words. Where lanes read one after the other, two of them meet at most banks of local
 * memory; lanes that read every other one all read different ones. So a warp has the even blocks of 64, and the next
 * one the odd ones, if there are places enough (BY_PARITY).
 */
#if !TILES
#define UNITS ((PIECES + TEAM_LANES - 1) / TEAM_LANES)
#define PIECES (NK / PIECE_ELEMS)
#if defined(BLOCK_NBYTES)
#define PIECE_ELEMS 32 /* a block, or one of PER_BLOCK */
#define PIECE_WORDS (PIECE_ELEMS / 4)
#if defined(W_Q8_0)
#define BY_PARITY (UNITS * TEAM_LANES >= (PIECES + 63) / 64 * 64)
#endif

#define DOT4(a, b, sum) __dp4a((int)(a), (int)(b), (sum))

/* Sums begin with the integer whose bits are the float 1.5 * 2^23 and stay closer to it than 2^22, so their bits are this
 * float and the sum. (To convert an integer takes as long as four other instructions.) */
#define SUM_BITS 0x4b400000
FN float sum_of(int bits) { return FLOAT_OF_BITS((u32)bits) - 12582912.0f; }

typedef struct {
  u32 digits[DIGITS][PIECE_WORDS];
  float unit;
#if HAS_MIN
  float sums[PARTS]; /* of the elements */
#endif
} Kept;

/* What a lane keeps for a piece, its words as unpack_piece gives those of the weight. */
FN void take(Kept *to, const u8 *row, int piece) {
  UNROLL for (int d = 0; d < DIGITS; d++) {
    const uint4 *from = (const uint4 *)(row + d * NK + piece * PIECE_ELEMS);
    uint4 low = from[0], high = from[1];
    u32 *digits = to->digits[d];
    u32 lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
    UNROLL for (int i = 0; i < 4; i++) {
#if defined(W_MXFP4)
      digits[2 * i] = side_by_side(lows[i], highs[i], 0), digits[2 * i + 1] = side_by_side(lows[i], highs[i], 1);
#elif defined(W_Q4_0)
      digits[2 * i] = lows[i], digits[2 * i + 1] = highs[i];
#else
      digits[i] = lows[i], digits[i + 4] = highs[i];
#endif
    }
  }
  to->unit = unit_at(row, piece);
#if HAS_MIN
  UNROLL for (int p = 0; p < PARTS; p++) {
    int digits[DIGITS] = {0, 0, 0};
    UNROLL for (int d = 0; d < DIGITS; d++) {
      UNROLL for (int i = 0; i < PIECE_WORDS / PARTS; i++)
        digits[d] = DOT4(0x01010101u, to->digits[d][p * (PIECE_WORDS / PARTS) + i], digits[d]);
    }
    to->sums[p] = ((float)digits[2] * 65536.0f + ((float)digits[1] * 256.0f + (float)digits[0])) * to->unit;
  }
#endif
}

/* `count` words from byte `at` of local memory on, at any address or at a multiple of GRANULE. */
FN void raw_words(u32 *to, LOCAL_PTR const u8 *memory, int at, int count) {
#if defined(CODE_FIELDS) && GRANULE >= 16
  UNROLL for (int i = 0; i < count; i += 4) {
    u4 four = LOAD16(memory + at + i * 4);
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
#elif defined(CODE_FIELDS) && GRANULE >= 4
  UNROLL for (int i = 0; i < count; i++) to[i] = ((LOCAL_PTR const u32 *)(memory + at))[i];
#else
  LOCAL_PTR const u32 *from = (LOCAL_PTR const u32 *)memory + at / 4;
  int shift = at % 4 * 8;
  u32 raw[PIECE_WORDS + 1];
  UNROLL for (int i = 0; i < count; i++) raw[i] = from[i];
  raw[count] = shift ? from[count] : 0u;
  UNROLL for (int i = 0; i < count; i++) to[i] = FUNNEL(raw[i], raw[i + 1], shift);
#endif
}

/* Signed bytes of piece `s` of the block that begins at byte `at` of local memory. */
FN void unpack_piece(u32 *to, LOCAL_PTR const u8 *memory, int at, int s) {
#if defined(CODE_FIELDS)
  UNROLL for (int i = 0; i < PIECE_WORDS; i++) to[i] = 0u;
#define ADD_FIELD(from, words, shift, width, mask, up)                                                         \
  {                                                                                                            \
    u32 raw[words];                                                                                            \
    raw_words(raw, memory, at + (from), words);                                                                \
    UNROLL for (int i = 0; i < PIECE_WORDS; i++)                                                               \
      to[i] |= ((raw[i % (words)] >> ((shift) + i / (words) * (width))) & (mask)) << (up);                     \
  }
#define ADD_BITS(from, up)                                                                                     \
  {                                                                                                            \
    u32 bits;                                                                                                  \
    raw_words(&bits, memory, at + (from), 1);                                                                  \
    UNROLL for (int i = 0; i < PIECE_WORDS; i++) to[i] |= SPREAD_BITS(bits >> i * 4) << (up);                  \
  }
  CODE_FIELDS(ADD_FIELD, ADD_BITS, s)
  UNROLL for (int i = 0; i < PIECE_WORDS; i++) to[i] = BYTES_OF(to[i]);
#else
  u32 words[(BLOCK_NBYTES - HEAD) / 4];
  raw_words(words, memory, at + HEAD, (BLOCK_NBYTES - HEAD) / 4);
  UNROLL for (int i = 0; i < (BLOCK_NBYTES - HEAD) / 4; i++) {
    u32 four = words[i];
#if defined(W_Q8_0)
    to[i] = four;
#elif defined(W_Q4_0)
    /* n - 8 in the upper half of a byte is 16 times that. */
    to[2 * i] = ((four << 4) ^ 0x88888888u) & 0xf0f0f0f0u;
    to[2 * i + 1] = (four ^ 0x88888888u) & 0xf0f0f0f0u;
#else
    /* Twice the numbers, looked up four at a time: bit 3 of a nibble chooses between two tables. */
    u32 which = (four >> 1) & 0x44444444u, index = four & 0x77777777u;
    u32 plus = PERMUTED(0x03020100u, 0x0c080604u, index);
    u32 minus = PERMUTED(0xfdfeff00u, 0xf4f8fafcu, index);
    to[2 * i] = PERMUTED(plus, minus, which | 0x3210u);
    plus = PERMUTED(0x03020100u, 0x0c080604u, index >> 16);
    minus = PERMUTED(0xfdfeff00u, 0xf4f8fafcu, index >> 16);
    to[2 * i + 1] = PERMUTED(plus, minus, (which >> 16) | 0x3210u);
#endif
  }
#endif
}

/* The product with piece `piece` of a row that begins at byte `at`. */
FN float dot_piece(const Kept *kept, LOCAL_PTR const u8 *memory, int at, int piece) {
  int block = at + piece / PER_BLOCK * BLOCK_NBYTES, s = piece % PER_BLOCK;
  u32 four[PIECE_WORDS];
  float all = 0.0f;
  unpack_piece(four, memory, block, s);
  UNROLL for (int p = 0; p < PARTS; p++) {
    int high = SUM_BITS, middle = SUM_BITS, low = SUM_BITS;
    UNROLL for (int i = p * PIECE_WORDS / PARTS; i < (p + 1) * PIECE_WORDS / PARTS; i++) {
      high = DOT4(four[i], kept->digits[2][i], high);
      middle = DOT4(four[i], kept->digits[1][i], middle);
      low = DOT4(four[i], kept->digits[0][i], low);
    }
    float sum = sum_of(high) * 65536.0f + (sum_of(middle) * 256.0f + sum_of(low));
    all += sum * (block_scale(memory + block, s * PARTS + p) * kept->unit);
#if HAS_MIN
    all += kept->sums[p] * block_min(memory + block, s * PARTS + p);
#endif
  }
  return all;
}
#else
#define PIECE_ELEMS ELEMS_PER_CHUNK
typedef struct {
  float x[PIECE_ELEMS];
} Kept;

FN void take(Kept *to, const u8 *row, int piece) {
  UNROLL for (int j = 0; j < PIECE_ELEMS; j += 4) {
    float4 four = ((const float4 *)row)[(piece * PIECE_ELEMS + j) / 4];
    to->x[j] = four.x, to->x[j + 1] = four.y, to->x[j + 2] = four.z, to->x[j + 3] = four.w;
  }
}

FN float dot_piece(const Kept *kept, LOCAL_PTR const u8 *memory, int at, int piece) {
  float weights[PIECE_ELEMS], sum = 0.0f;
  unpack(weights, LOAD16(memory + at + piece * 16));
  UNROLL for (int j = 0; j < PIECE_ELEMS; j++) sum += weights[j] * kept->x[j];
  return sum;
}
#endif

/* Number of a lane's piece; there is none if it is not less than PIECES. */
FN int piece_of(int u) {
#if BY_PARITY
  int warp = u * TEAM_WARPS + TEAM_LANE / 32;
  return (warp / 2 * 32 + WARP_LANE) * 2 + warp % 2;
#else
  return u * TEAM_LANES + TEAM_LANE;
#endif
}
#define HAS_ALL (PIECES == UNITS * TEAM_LANES)

#define KEPT_COUNT UNITS
/* All that a lane keeps; what it has no piece for is not looked at. */
FN void take_row(Kept *to, const u8 *row) {
  UNROLL for (int u = 0; u < UNITS; u++) {
    int piece = piece_of(u);
    take(to + u, row, piece < PIECES ? piece : 0);
  }
}
#endif
