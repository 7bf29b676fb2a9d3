/* What a lane keeps of x, and its products with tiles of 16 rows in local memory, on units that multiply matrices of
 * bytes (TILES). It takes the place of the pieces of gemv_pieces.h where blocks of 4 bits would take more instructions
 * than there is time for. With GATED a tile has 8 rows of each side.
 *
 * What is multiplied at once is two blocks of each row of a tile. Lane 4 g + t has 8 bytes of numbers of rows g and
 * g + 8: those from 8 (t % 2) on, of the first block if t < 2, else of the second. Columns 0 to 2 of the other factor
 * are the digits of x for the first block, the lowest first, and columns 4 to 6 those for the second; where a lane has
 * numbers of one block for a column of the other, digits are zero. So lanes that have numbers of a block get its sums
 * as well, all of them need one scale for each row, and nothing is chosen.
 *
 * Nibbles of mxfp4 are looked up eight at a time. A permutation of bytes takes one out of eight, and where bit 3 of its
 * selector is set, it gives eight times the sign of that byte instead: 0 or -1. For a nibble with the magnitude m (not
 * 0, for which all is 0) there are two look-ups, the second one with bit 3 the other way round:
 *
 *   nibble                    m         -m
 *   looked up among m + 1     m + 1      0
 *   looked up among -m        -1        -m
 *
 * Both are multiplied with the same digits, so their sum counts. Sums begin with the integer whose bits are the float
 * 1.5 * 2^23 and stay closer to it than 2^22, so their bits are this float and the sum.
 */
#if TILES
#define BLOCKS (NK / 32)
#define HALVES (2 * WARPS) /* of warps: each has every HALVES-th block of a row */
#define PAIRS ((BLOCKS + HALVES - 1) / HALVES)
/* From a pair to the next one of a warp: a multiple of 4, so bytes have the same places in words. */
#define STEP_NBYTES (HALVES * BLOCK_NBYTES)
/* Blocks from the first one of a pair to the second: so far that lanes read different banks. */
#if defined(W_MXFP4)
#define APART 4
#else
#define APART 1
#endif

typedef struct {
  u32 digits[4]; /* of one column */
  float unit;
} Kept;

#define PART_OF_PAIR (WARP_LANE % 4 / 2)
/* Block of the first pair. */
#define FIRST_BLOCK (WARP_INDEX / APART * (2 * APART) + WARP_INDEX % APART + PART_OF_PAIR * APART)

#define KEPT_COUNT PAIRS
/* All that a lane keeps. Of x it needs the numbers that it has of weights, each of 8 bytes of a word and a half. */
FN void take_row(Kept *to, const u8 *row) {
  int column = WARP_LANE / 4, digit = column % 4, is_mine = digit < DIGITS && column / 4 == PART_OF_PAIR;
  UNROLL for (int p = 0; p < PAIRS; p++) {
    int block = p * HALVES + FIRST_BLOCK, exists = block < BLOCKS, takes = exists && is_mine;
    const uint2 *from = (const uint2 *)(row + (takes ? digit * NK + block * 32 + WARP_LANE % 2 * 8 : 0));
    uint2 low = from[0], high = from[2];
#if defined(W_MXFP4)
    u32 words[4] = {side_by_side(low.x, high.x, 0), side_by_side(low.x, high.x, 1), side_by_side(low.y, high.y, 0),
                    side_by_side(low.y, high.y, 1)};
#else
    u32 words[4] = {low.x, high.x, low.y, high.y};
#endif
    UNROLL for (int i = 0; i < 4; i++) to[p].digits[i] = takes ? words[i] : 0u;
    to[p].unit = exists ? unit_at(row, block) : 0.0f;
  }
}

/* A constant that stays in a register: compilers do not know that no lane has so high a number, and copy constants that
 * they know from where all lanes share them, again and again. */
#define HELD(constant) ((constant) + ((u32)LANE >> 10))

/* All bits the other way round, by a multiplication: what does logic also permutes bytes, and is what is waited for. */
#define COMPLEMENT(word) ((word) * HELD(0xffffffffu) + HELD(0xffffffffu))

/* Two rows' words of numbers times the digits of x, added to the sums of both. */
FN void multiply_word(int *sum, u32 low, u32 high, const u32 *digits) {
#if defined(W_MXFP4)
  /* The second table is read from its end. */
  u32 words[4] = {low, high, low >> 16, high >> 16}, a[4], others[4];
  UNROLL for (int i = 0; i < 4; i++) {
    a[i] = PERMUTED_OR_SIGN(HELD(0x04030200u), 0x0d090705u, words[i]);
    others[i] = PERMUTED_OR_SIGN(HELD(0xfcfaf8f4u), 0x00fffefdu, COMPLEMENT(words[i]));
  }
  MULTIPLY_ADD(sum, a, digits, 0);
  MULTIPLY_ADD(sum, others, digits, 0);
#else
  /* n - 8 in the upper half of a byte is 16 times that. */
  u32 a[4];
  a[0] = ((low << 4) ^ 0x88888888u) & 0xf0f0f0f0u, a[2] = (low ^ 0x88888888u) & 0xf0f0f0f0u;
  a[1] = ((high << 4) ^ 0x88888888u) & 0xf0f0f0f0u, a[3] = (high ^ 0x88888888u) & 0xf0f0f0f0u;
  MULTIPLY_ADD(sum, a, digits, 0);
#endif
}

/* What the numbers of a block are to be multiplied with. */
FN float tile_scale(const u8 *block) {
#if defined(W_MXFP4)
  /* As half_scale has it: the other one of these is always less, and both are multiplications. */
  int e = block[0], normal = e * 0x00800000 - 0x00800000, small = e * 0x00200000 + 0x00200000;
  return FLOAT_OF_BITS((u32)MAX(normal, small));
#else
  return block_scale(block, 0);
#endif
}

/* Add the products with the tiles of a stage. `begin` says where row 0 of each side begins. Of each tile a lane has
 * four sums: columns 2 t and 2 t + 1 of row g, and of row g + 8. */
FN void add_stage(float *sums, const Kept *x, const u8 *stage, const int *begin) {
  /* Where the last pair has no block for this lane, digits and unit are zero: the first block does as well. */
  int has_last = (PAIRS - 1) * HALVES + FIRST_BLOCK < BLOCKS, last_step = has_last ? (PAIRS - 1) * STEP_NBYTES : 0;
  int block = PAIRS > 1 || has_last ? FIRST_BLOCK : 0;
  UNROLL for (int tile = 0; tile < ROWS / TILE_ROWS; tile++) {
    int row = (tile * TILE_ROWS + WARP_LANE / 4) * ROW_NBYTES + block * BLOCK_NBYTES;
    const u8 *blocks[2] = {stage + begin[0] + row, stage + (GATED ? begin[1] + row : begin[0] + row + 8 * ROW_NBYTES)};
    const u8 *words[2];
    int shifts[2];
    UNROLL for (int r = 0; r < 2; r++) {
      /* From the byte before the numbers on, no word is read that has nothing of the block. */
      int at = (int)(blocks[r] - stage) + HEAD - 1 + WARP_LANE % 2 * 8;
      words[r] = stage + (at & ~3), shifts[r] = (at & 3) * 8 + 8;
    }
    UNROLL for (int p = 0; p < PAIRS; p++) {
      u32 numbers[2][2];
      float scales[2];
      int step = p == PAIRS - 1 && BLOCKS % HALVES != 0 ? last_step : p * STEP_NBYTES;
      UNROLL for (int r = 0; r < 2; r++) {
        const u32 *from = (const u32 *)(words[r] + step);
        numbers[r][0] = FUNNEL_TO_32(from[0], from[1], shifts[r]);
        numbers[r][1] = FUNNEL_TO_32(from[1], from[2], shifts[r]);
        scales[r] = tile_scale(blocks[r] + step) * x[p].unit;
      }
      int sum[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
      UNROLL for (int i = 0; i < 2; i++) multiply_word(sum, numbers[0][i], numbers[1][i], x[p].digits + 2 * i);
      UNROLL for (int i = 0; i < 4; i++)
        sums[tile * 4 + i] += (FLOAT_OF_BITS((u32)sum[i]) - 12582912.0f) * scales[i / 2];
    }
  }
}

/* Store the sums of a warp for the stage whose row 0 has number `first` of the set. */
FN void keep_sums(float *kept, const float *sums, int first) {
  int t = WARP_LANE % 4;
  UNROLL for (int tile = 0; tile < ROWS / TILE_ROWS; tile++) {
    float both[2];
    UNROLL for (int i = 0; i < 2; i++) {
      const float *v = sums + tile * 4 + i * 2;
      both[i] = t % 2 ? v[0] * 65536.0f : v[0] + v[1] * 256.0f;
    }
    ADD_OVER_LANES(both, 2, 4, kept);
    int row = first + tile * TILE_ROWS + WARP_LANE / 4, side = 0;
    if (GATED) side = t / 2; else row += t / 2 * 8;
    if (t % 2 == 0) kept[KEPT_PLACE(row, side, WARP_INDEX)] = both[0];
  }
}
#endif
