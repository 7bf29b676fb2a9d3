/* What a lane keeps of x, and its products with pieces of a row of a weight in local memory. A row is PIECES
 * pieces of PIECE_ITEMS weights; a lane of a team has every TEAM_LANES-th of them. (With TILES see fed_tiles.h.)
 *
 * Plain types are multiplied as floats. Blocks are multiplied as integers: the floats of a piece are
 * rounded to multiples of 2^-22 of a power of two that is larger than all of them and written with three
 * signed digits of 8 bits, so that four products take one instruction for each digit, and sums are exact
 * (see blocks.h, where the same is done for units that multiply matrices).
 */
#define UNITS ((PIECES + TEAM_LANES - 1) / TEAM_LANES)
#define PIECES (NK / PIECE_ITEMS)

#if defined(BLOCK_NBYTES)
#define ROW_NBYTES (NK / 32 * BLOCK_NBYTES)

/* The largest magnitude, as bits, in whose order infinities and NaN come last; at least 2^-105. */
FN u32 top_of(const float *x, int count) {
  u32 top = 22u << 23;
  UNROLL for (int i = 0; i < count; i++) top = MAX(top, BITS_OF_FLOAT(x[i]) & 0x7fffffffu);
  return top;
}
/* What x is multiplied with to count units, and a unit; NaN if the largest is no number. */
FN float per_unit_of(u32 top) { return top >> 23 == 255u ? 0.0f : FLOAT_OF_BITS((275u - (top >> 23)) << 23); }
FN float unit_of(u32 top) { return FLOAT_OF_BITS(top >> 23 == 255u ? 0x7fc00000u : ((top >> 23) - 21u) << 23); }
/* Units of x. Adding 1.5 * 2^23 rounds to an integer; adding half of each digit's range makes digits signed, when
 * digit_of has taken it away again. */
FN u32 whole_of(float x, float per_unit) {
  return BITS_OF_FLOAT(x * per_unit + 12582912.0f) - 0x4b400000u + 0x00808080u;
}
/* Digit d of four. */
FN u32 digit_of(const u32 *whole, int d) {
  u32 pair = (u32)(d | (d + 4) << 4);
  u32 low = PERMUTED(whole[0], whole[1], pair), high = PERMUTED(whole[2], whole[3], pair);
  return PERMUTED(low, high, 0x5410u) ^ 0x80808080u;
}
#endif

#if !TILES
#if defined(BLOCK_NBYTES)
#if defined(W_Q8_0)
#define PIECE_ITEMS 16 /* half a block */
#else
#define PIECE_ITEMS 32
#endif
#define PIECE_WORDS (PIECE_ITEMS / 4)

#define DOT4(a, b, sum) __dp4a((int)(a), (int)(b), (sum))

typedef struct {
  u32 digits[DIGITS][PIECE_WORDS];
  float unit;
} Kept;

/* Place in a piece of byte j of word i, as unpack_piece gives them. */
#if defined(W_Q8_0)
#define PLACE(i, j) ((i) * 4 + (j))
#elif defined(W_Q4_0)
#define PLACE(i, j) ((i) % 2 * 16 + (i) / 2 * 4 + (j))
#else
#define PLACE(i, j) ELEMENT(i, j)
#endif

FN void keep(Kept *to, const float *x) {
  u32 top = top_of(x, PIECE_ITEMS);
  UNROLL for (int i = 0; i < PIECE_WORDS; i++) {
    u32 whole[4];
    UNROLL for (int j = 0; j < 4; j++) whole[j] = whole_of(x[PLACE(i, j)], per_unit_of(top));
    UNROLL for (int d = 0; d < DIGITS; d++) to->digits[d][i] = digit_of(whole, d);
  }
  to->unit = unit_of(top);
}

/* Signed bytes of the piece that begins at byte `at` of local memory, at any address. */
FN void unpack_piece(u32 *to, LOCAL_PTR const u8 *memory, int at) {
  LOCAL_PTR const u32 *from = (LOCAL_PTR const u32 *)memory + at / 4;
  int shift = at % 4 * 8;
  u32 raw[5];
  UNROLL for (int i = 0; i < 4; i++) raw[i] = from[i];
  raw[4] = shift ? from[4] : 0u;
  UNROLL for (int i = 0; i < 4; i++) {
    u32 four = FUNNEL(raw[i], raw[i + 1], shift);
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
}

/* The product with piece `piece` of a row that begins at byte `at`. */
FN float dot_piece(const Kept *kept, LOCAL_PTR const u8 *memory, int at, int piece) {
#if defined(W_Q8_0)
  int block = at + (piece >> 1) * BLOCK_NBYTES, numbers = block + HEAD + (piece & 1) * 16;
#else
  int block = at + piece * BLOCK_NBYTES, numbers = block + HEAD;
#endif
  u32 four[PIECE_WORDS];
  int high = 0, middle = 0, low = 0;
  unpack_piece(four, memory, numbers);
  UNROLL for (int i = 0; i < PIECE_WORDS; i++) {
    high = DOT4(four[i], kept->digits[2][i], high);
    middle = DOT4(four[i], kept->digits[1][i], middle);
    low = DOT4(four[i], kept->digits[0][i], low);
  }
  float sum = (float)high * 65536.0f + (float)(middle * 256 + low);
  return sum * (block_scale(memory + block) * kept->unit);
}
#else
#define PIECE_ITEMS ITEMS
#define ROW_NBYTES (NK * W_NBYTES)
typedef struct {
  float x[PIECE_ITEMS];
} Kept;

FN void keep(Kept *to, const float *x) {
  UNROLL for (int j = 0; j < PIECE_ITEMS; j++) to->x[j] = x[j];
}

FN float dot_piece(const Kept *kept, LOCAL_PTR const u8 *memory, int at, int piece) {
  float weights[PIECE_ITEMS], sum = 0.0f;
  unpack(weights, LOAD16(memory + at + piece * 16));
  UNROLL for (int j = 0; j < PIECE_ITEMS; j++) sum += weights[j] * kept->x[j];
  return sum;
}
#endif

/* The pieces of a row of floats that a lane has. */
FN void load_pieces(float *to, const u8 *from) {
  UNROLL for (int u = 0; u < UNITS; u++) {
    int piece = u * TEAM_LANES + TEAM_LANE;
    UNROLL for (int j = 0; j < PIECE_ITEMS; j += 4) {
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (piece < PIECES) four = ((const float4 *)from)[(piece * PIECE_ITEMS + j) / 4];
      float *v = to + u * PIECE_ITEMS + j;
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    }
  }
}
#endif
