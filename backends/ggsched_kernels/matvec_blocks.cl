/* y[m, n] = sum_k x[m, k] w[n, k] for few rows m of x and a weight in blocks, on devices with warps: bound
 * by reading w once.
 *
 * A group first writes its rows of x as digits to local memory (blocks.h), then takes 16 rows of w after
 * the other, in steps along k of which each warp has BLOCKS pieces of 32; at the end of the rows the warps add
 * up. Blocks are not aligned to anything: steps are copied to local memory in aligned pieces of 16 bytes,
 * STAGES - 1 of them ahead. With PRODUCER one more warp does nothing but that, and the others wait for
 * nobody else (what CUTLASS calls warp specialisation); it takes compute capability 9.0.
 *
 * CONSTANT_W says that nobody writes the weights: a producer warp requests them while the predecessor still runs.
 *
 * ALIGNED says that all rows of w begin at multiples of 16 bytes. Rows of x begin at such multiples and lie
 * along k without gaps.
 */
#ifndef EARLY /* OpenCL launches nothing early */
#define EARLY_LET_GO()
#define EARLY_WAIT()
#endif
#define ROWS 16
#define WARPS (LANES / WARP) /* without the producer warp */
#define STEP (WARPS * BLOCKS)
#define STEP_NBYTES (STEP / PER_BLOCK * BLOCK_NBYTES) /* a multiple of 16 */
#define PIECES (STEP_NBYTES / 16 + !ALIGNED)
#define ROW_NBYTES ((PIECES | 1) * 16) /* an odd number of pieces: 8 rows lie in different banks */
#define STAGE_NBYTES (ROWS * ROW_NBYTES)
#define COLUMNS (COLS * DIGITS)
#define TILES ((COLUMNS + 7) / 8) /* of 8 columns */
#define X_WORDS (COLUMNS * PLANE) /* of a piece */
#define RESULTS (ROWS * COLUMNS)  /* of a warp */
#define AHEAD 2                   /* words of x that a lane loads at once */

/* Bytes by which row n begins behind a multiple of 16; of every 16th row the same. */
FN int before_row(const Product p, int n) {
  return ALIGNED ? 0 : ((int)((u64)p.w & 15) + n * (int)(p.sw & 15)) & 15;
}

#if PRODUCER
/* Copy step `s` of the rows from `n0` on; by a warp. */
FN void copy_step(LOCAL_PTR u8 *to, LOCAL_PTR Gate *gate, const Product p, int n0, int s) {
  int row_nbytes = p.nk / BLOCK_ELEMENTS * BLOCK_NBYTES, n = n0 + WARP_LANE, before = before_row(p, n);
  if (WARP_LANE >= ROWS) return;
  GLOBAL const u8 *begin = p.w + n * p.sw + s * STEP_NBYTES - before;
  int end = MIN(STEP_NBYTES, row_nbytes - s * STEP_NBYTES) + before, span = n < p.rows ? (end + 15) & ~15 : 0;
  to += WARP_LANE * ROW_NBYTES;
  if (!ALIGNED && n == p.rows - 1) { /* the weight may end in the middle of a piece */
    for (int i = end & ~15; i < end; i++) to[i] = begin[i];
    span = end & ~15;
  }
  GATE_ANNOUNCE(gate, span);
  if (span > 0) COPY_SPAN(to, begin, span, gate);
}

/* All steps of a group, each as soon as its stage is free. */
FN void feed(LOCAL_PTR u8 *stages, LOCAL_PTR Gate *full, LOCAL_PTR Gate *empty, const Product p, int steps) {
  int buffer = 0, phase = 1; /* before the first phase ends, waiting for the one before returns at once */
  for (int part = 0, before = 0; part < WEIGHTS; part++) {
    const Product q = part_of(p, part);
    for (int n0 = FIRST_OF_PART(p, before) * ROWS; n0 < q.rows; n0 += p.groups * ROWS) {
      for (int step = 0; step < steps; step++) {
        GATE_AWAIT(empty + buffer, phase);
        copy_step(stages + buffer * STAGE_NBYTES, full + buffer, q, n0, step);
        if (++buffer == STAGES) buffer = 0, phase ^= 1;
      }
    }
    before += (q.rows + ROWS - 1) / ROWS;
  }
}
#else
/* Begin to copy step `s` of the rows from `n0` on; by a group. */
FN void copy_step(LOCAL_PTR u8 *to, const Product p, int n0, int s) {
  int row_nbytes = p.nk / BLOCK_ELEMENTS * BLOCK_NBYTES;
  GLOBAL const u8 *last = p.w + (p.rows - 1) * p.sw + row_nbytes; /* maybe in the middle of a piece */
  for (int i = LANE; i < ROWS * PIECES; i += LANES) {
    int r = i / PIECES, at = i % PIECES * 16 - before_row(p, r);
    if (n0 + r >= p.rows || s * STEP_NBYTES + at >= row_nbytes) continue;
    GLOBAL const u8 *piece = p.w + (n0 + r) * p.sw + s * STEP_NBYTES + at;
    LOCAL_PTR u8 *copy = to + r * ROW_NBYTES + i % PIECES * 16;
    if (piece + 16 <= last) {
      COPY16(copy, piece);
    } else {
      for (int j = 0; piece + j < last; j++) copy[j] = piece[j];
    }
  }
}
#endif

/* Add the products of a warp's part of a step, which begins with piece `first` of the row. `check` says that it may go beyond the last one;
 * as a constant it leaves nothing behind in the loop, whose turns can then overlap. */
FN void add_step(float *sums, LOCAL_PTR const u8 *stage, LOCAL_PTR const u32 *xs, LOCAL_PTR const float *units,
                 LOCAL_PTR const float *xsums, const Product p, int n0, int first, int check, LOCAL_PTR u32 *scratch) {
  int g = WARP_LANE / 4, t = WARP_LANE % 4, blocks = p.nk / 32;
  int at_low = before_row(p, n0 + g), at_high = before_row(p, n0 + g + 8);
  LOCAL_PTR const u8 *low = stage + g * ROW_NBYTES, *high = low + 8 * ROW_NBYTES;
  UNROLL_MEETING for (int j = 0; j < BLOCKS; j++) {
    int exists = !check || first + j < blocks, at = exists ? first + j : 0;
    int of_step = WARP_INDEX * BLOCKS + j, block = of_step / PER_BLOCK * BLOCK_NBYTES, s = of_step % PER_BLOCK;
    u32 a[4];
    unpack_words(a, a + 2, low, at_low + block, s, t);
    unpack_words(a + 1, a + 3, high, at_high + block, s, t);
    float scale_low[PARTS], scale_high[PARTS];
    UNROLL for (int i = 0; i < PARTS; i++) {
      scale_low[i] = exists ? block_scale(low + at_low + block, s * PARTS + i) : 0.0f;
      scale_high[i] = exists ? block_scale(high + at_high + block, s * PARTS + i) : 0.0f;
    }
#if HAS_MIN
    float min_low[PARTS], min_high[PARTS];
    UNROLL for (int i = 0; i < PARTS; i++) {
      min_low[i] = exists ? block_min(low + at_low + block, s * PARTS + i) : 0.0f;
      min_high[i] = exists ? block_min(high + at_high + block, s * PARTS + i) : 0.0f;
    }
#endif
    UNROLL_MEETING for (int tile = 0; tile < TILES; tile++) {
      LOCAL_PTR const u32 *from = xs + at * X_WORDS + MIN(tile * 8 + g, COLUMNS - 1) * PLANE + t * 2;
      u32 b[2];
      b[0] = from[0], b[1] = from[1];
      int column = tile * 8 + t * 2;
      int of0 = at * COLS + MIN(column / DIGITS, COLS - 1), of1 = at * COLS + MIN((column + 1) / DIGITS, COLS - 1);
      float unit0 = units[of0], unit1 = COLS == 1 ? unit0 : units[of1];
      UNROLL_MEETING for (int i = 0; i < PARTS; i++) {
        u32 part[4]; /* bytes of another scale are zero */
        int c[4];
        UNROLL for (int v = 0; v < 4; v++) part[v] = PARTS == 1 || v / 2 == i ? a[v] : 0u, c[v] = 0;
        MULTIPLY_ADD(c, part, b, scratch);
        sums[tile * 4] += (float)c[0] * (scale_low[i] * unit0);
        sums[tile * 4 + 1] += (float)c[1] * (scale_low[i] * unit1);
        sums[tile * 4 + 2] += (float)c[2] * (scale_high[i] * unit0);
        sums[tile * 4 + 3] += (float)c[3] * (scale_high[i] * unit1);
#if HAS_MIN
        /* To the column of the lowest digit. */
        float x0 = column % DIGITS == DIGITS - 1 ? xsums[of0 * PARTS + i] : 0.0f;
        float x1 = (column + 1) % DIGITS == DIGITS - 1 ? xsums[of1 * PARTS + i] : 0.0f;
        sums[tile * 4] += min_low[i] * x0, sums[tile * 4 + 1] += min_low[i] * x1;
        sums[tile * 4 + 2] += min_high[i] * x0, sums[tile * 4 + 3] += min_high[i] * x1;
#endif
      }
    }
  }
}

/* Words of x from number `i0` on, AHEAD for each lane; the columns of a piece follow each other. */
FN void load_words(float *v, const Product p, int i0) {
  int words = p.nk / 32 * COLS * PLANE;
  UNROLL for (int a = 0; a < AHEAD; a++) {
    int i = MIN(i0 + a * LANES + LANE, words - 1), block = i / (PLANE * COLS);
    int c = COLS == 1 ? 0 : MIN(i / PLANE % COLS, p.columns - 1);
    GLOBAL const float *x = (GLOBAL const float *)(p.x + c * p.sx) + block * 32;
#if defined(W_MXFP4)
    UNROLL for (int j = 0; j < 4; j++) v[a * 4 + j] = x[ELEMENT(i % PLANE, j)];
#else
    u4 four = LOAD16(x + ELEMENT(i % PLANE, 0));
    v[a * 4] = FLOAT_OF_BITS(four.x), v[a * 4 + 1] = FLOAT_OF_BITS(four.y);
    v[a * 4 + 2] = FLOAT_OF_BITS(four.z), v[a * 4 + 3] = FLOAT_OF_BITS(four.w);
#endif
  }
}
FN void split_words(LOCAL_PTR u32 *to, LOCAL_PTR float *units, LOCAL_PTR float *xsums, const float *v, const Product p,
                    int i0, LOCAL_PTR float *scratch) {
  int words = p.nk / 32 * COLS * PLANE;
  UNROLL_MEETING for (int a = 0; a < AHEAD; a++) {
    int i = i0 + a * LANES + LANE, unit_of = i / PLANE;
    if (WARPS_APART && i0 + a * LANES >= words) break;
    float sum, unit = split_word(to + unit_of * DIGITS * PLANE + i % PLANE, &sum, i < words, v + a * 4, scratch);
    if (i < words && i % PLANE == 0) units[unit_of] = unit;
#if HAS_MIN
    if (i < words && i % PLANE < PARTS) xsums[unit_of * PARTS + i % PLANE] = sum;
#endif
  }
}

/* Store the sums of a lane where lanes of other warps find them. */
FN void keep_sums(LOCAL_PTR float *results, float *sums) {
  int g = WARP_LANE / 4, t = WARP_LANE % 4;
  UNROLL for (int i = 0; i < TILES * 4; i++) {
    int column = i / 4 * 8 + t * 2 + i % 2, row = g + (i & 2) * 4;
    if (column < COLUMNS) results[row * COLUMNS + column] = sums[i];
    sums[i] = 0.0f;
  }
}

/* Add up what the warps have kept for the rows from n0 on. */
FN void store_rows(const Product p, LOCAL_PTR const float *results, int n0) {
  for (int i = LANE; i < ROWS * COLS; i += LANES) {
    int c = i / ROWS, n = n0 + i % ROWS;
    LOCAL_PTR const float *from = results + i % ROWS * COLUMNS + c * DIGITS;
    float high = 0.0f, middle = 0.0f, low = 0.0f;
    UNROLL for (int warp = 0; warp < WARPS; warp++) {
      high += from[warp * RESULTS];
      middle += from[warp * RESULTS + 1];
      low += from[warp * RESULTS + 2];
    }
    if (n < p.rows && c < p.columns)
      F32_AT(p.y + c * p.sy_column + n * p.sy_row) = high * 65536.0f + (middle * 256.0f + low);
  }
}

/* Local memory: two sets of results of the warps, stages, digits of x, their units, sums of x. */
FN void product(const Product p, LOCAL_PTR u8 *memory, LOCAL_PTR Gate *gates, LOCAL_PTR u32 *scratch) {
  int blocks = p.nk / 32, words = blocks * COLS * PLANE, steps = (blocks + STEP - 1) / STEP;
  LOCAL_PTR float *results = (LOCAL_PTR float *)memory;
  LOCAL_PTR u8 *stages = memory + 2 * WARPS * RESULTS * 4;
  LOCAL_PTR u32 *xs = (LOCAL_PTR u32 *)(stages + STAGES * STAGE_NBYTES);
  LOCAL_PTR float *units = (LOCAL_PTR float *)(xs + blocks * X_WORDS), *xsums = units + blocks * COLS;
  float sums[TILES * 4], v[AHEAD * 4];
  UNROLL for (int i = 0; i < TILES * 4; i++) sums[i] = 0.0f;
#if PRODUCER
  LOCAL_PTR Gate *full = gates, *empty = gates + STAGES;
  if (LANE < STAGES) {
    GATE_OPEN(full + LANE, ROWS);
    GATE_OPEN(empty + LANE, WARPS);
    GATES_READY();
  }
#if !CONSTANT_W
  if (words > 0 && LANE < LANES) load_words(v, p, 0); /* before the queues are full of weights */
#endif
  BARRIER();
  if (LANE >= LANES) {
    feed(stages, full, empty, p, steps);
    return;
  }
#if CONSTANT_W
  EARLY_WAIT();
  EARLY_LET_GO();
  if (words > 0) load_words(v, p, 0);
#endif
#else
#if WEIGHTS > 1
#error "several weights need a warp that copies"
#endif
  int next_n0 = p.group * ROWS, next_step = 0; /* of the step that is copied next */
#define COPY_NEXT(buffer)                                                                            \
  do {                                                                                               \
    if (next_n0 < p.rows && steps > 0) copy_step(stages + (buffer) * STAGE_NBYTES, p, next_n0, next_step); \
    if (++next_step >= steps) next_step = 0, next_n0 += p.groups * ROWS;                             \
    COPIES_CLOSE();                                                                                  \
  } while (0)
  if (words > 0) load_words(v, p, 0);
  for (int i = 0; i < STAGES - 1; i++) COPY_NEXT(i);
#endif
  for (int i0 = 0; i0 < words; i0 += AHEAD * LANES) {
    if (i0 > 0) load_words(v, p, i0);
    split_words(xs, units, xsums, v, p, i0, (LOCAL_PTR float *)scratch);
  }
  MEET(LANES);
  int buffer = 0, phase = 0, set = 0;
  for (int part = 0, before = 0; part < WEIGHTS; part++) {
    const Product q = part_of(p, part);
    for (int n0 = FIRST_OF_PART(p, before) * ROWS; n0 < q.rows; n0 += p.groups * ROWS) {
      for (int step = 0; step < steps; step++) {
#if PRODUCER
        GATE_AWAIT(full + buffer, phase);
#else
        COPIES_AWAIT(STAGES - 2);
        MEET(LANES); /* nobody reads the stage any more that is filled next */
        COPY_NEXT((buffer == 0 ? STAGES : buffer) - 1);
#endif
        LOCAL_PTR const u8 *stage = stages + buffer * STAGE_NBYTES;
        int first = step * STEP + WARP_INDEX * BLOCKS;
        if (WARPS_APART && first + BLOCKS <= blocks) {
          add_step(sums, stage, xs, units, xsums, q, n0, first, 0, scratch);
        } else if (!WARPS_APART || first < blocks) {
          add_step(sums, stage, xs, units, xsums, q, n0, first, 1, scratch);
        }
#if PRODUCER
        WARP_SYNC();
        if (WARP_LANE == 0) GATE_ARRIVE(empty + buffer);
#endif
        if (++buffer == STAGES) buffer = 0, phase ^= 1;
      }
      keep_sums(results + (set * WARPS + WARP_INDEX) * RESULTS, sums);
      MEET(LANES);
      store_rows(q, results + set * WARPS * RESULTS, n0);
      set ^= 1;
    }
    before += (q.rows + ROWS - 1) / ROWS;
  }
}

#undef KERNEL_BOUNDS
#define KERNEL_BOUNDS __launch_bounds__(LANES + WARP * PRODUCER)
#define LOCALS                                                          \
  LOCAL_BYTES(memory);                                                  \
  LOCAL u32 scratch[LANES * MULTIPLY_WORDS]; /* also for exchanges */    \
  LOCAL Gate gates[2 * STAGES]

/* Groups: (sharing the rows of w, rows of x / COLS, batches). */
KERNEL(matvec_blocks)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty, int groups
#if WEIGHTS > 1
                      , GLOBAL const u8 *w1, Tens tw1, GLOBAL u8 *y1, Tens ty1
#endif
#if WEIGHTS > 2
                      , GLOBAL const u8 *w2, Tens tw2, GLOBAL u8 *y2, Tens ty2
#endif
) {
  LOCALS;
  Product p = batch_product(w, tw, x, tx, y, ty, GROUP(2), GROUP(1) * COLS, 1);
  p.group = GROUP(0), p.groups = groups;
#if WEIGHTS > 1
  Product one = batch_product(w1, tw1, x, tx, y1, ty1, GROUP(2), GROUP(1) * COLS, 1);
  p.w1 = one.w, p.y1 = one.y, p.sw1 = one.sw, p.sy1_column = one.sy_column, p.sy1_row = one.sy_row, p.rows1 = one.rows;
#endif
#if WEIGHTS > 2
  Product two = batch_product(w2, tw2, x, tx, y2, ty2, GROUP(2), GROUP(1) * COLS, 1);
  p.w2 = two.w, p.y2 = two.y, p.sw2 = two.sw, p.sy2_column = two.sy_column, p.sy2_row = two.sy_row, p.rows2 = two.rows;
#endif
  product(p, memory, gates, scratch);
}

/* Groups: (sharing the rows of w, T * U, 1). */
KERNEL(matvec_blocks_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *ids, Tens ti,
                         GLOBAL u8 *y, Tens ty, int groups, GLOBAL i32 *fault, int code) {
  LOCALS;
  Product p = chosen_product(w, tw, x, tx, ids, ti, y, ty, GROUP(1), fault, code);
  p.group = GROUP(0), p.groups = groups;
  product(p, memory, gates, scratch);
}
