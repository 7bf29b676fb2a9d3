/* What a lane keeps of x, and its products with pieces of a row of a weight in local memory. A row is PIECES
 * pieces of PIECE_ITEMS weights; a lane of a team has every TEAM_LANES-th of them. (With TILES see fed_tiles.h.)
 */
#if !TILES
#define UNITS ((PIECES + TEAM_LANES - 1) / TEAM_LANES)
#define PIECES (NK / PIECE_ITEMS)
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

/* What a lane keeps for a piece, its words as unpack_piece gives those of the weight. */
FN void take(Kept *to, const u8 *row, int piece) {
  UNROLL for (int d = 0; d < DIGITS; d++) {
    const uint4 *from = (const uint4 *)(row + d * NK + piece * PIECE_ITEMS);
    uint4 low = from[0];
    u32 *digits = to->digits[d];
#if defined(W_Q8_0)
    digits[0] = low.x, digits[1] = low.y, digits[2] = low.z, digits[3] = low.w;
#else
    uint4 high = from[1];
    u32 lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
    UNROLL for (int i = 0; i < 4; i++) {
#if defined(W_Q4_0)
      digits[2 * i] = lows[i], digits[2 * i + 1] = highs[i];
#else
      digits[2 * i] = side_by_side(lows[i], highs[i], 0), digits[2 * i + 1] = side_by_side(lows[i], highs[i], 1);
#endif
    }
#endif
  }
  to->unit = unit_at(row, piece * PIECE_ITEMS / 32);
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
typedef struct {
  float x[PIECE_ITEMS];
} Kept;

FN void take(Kept *to, const u8 *row, int piece) {
  UNROLL for (int j = 0; j < PIECE_ITEMS; j += 4) {
    float4 four = ((const float4 *)row)[(piece * PIECE_ITEMS + j) / 4];
    to->x[j] = four.x, to->x[j + 1] = four.y, to->x[j + 2] = four.z, to->x[j + 3] = four.w;
  }
}

FN float dot_piece(const Kept *kept, LOCAL_PTR const u8 *memory, int at, int piece) {
  float weights[PIECE_ITEMS], sum = 0.0f;
  unpack(weights, LOAD16(memory + at + piece * 16));
  UNROLL for (int j = 0; j < PIECE_ITEMS; j++) sum += weights[j] * kept->x[j];
  return sum;
}
#endif

#define KEPT_COUNT UNITS
/* All that a lane keeps; what it has no piece for is not looked at. */
FN void take_row(Kept *to, const u8 *row) {
  UNROLL for (int u = 0; u < UNITS; u++) {
    int piece = u * TEAM_LANES + TEAM_LANE;
    take(to + u, row, piece < PIECES ? piece : 0);
  }
}
#endif
