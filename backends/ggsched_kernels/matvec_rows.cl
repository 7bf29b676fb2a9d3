/* y[m, n] = sum_k x[m, k] w[n, k] for few rows m of x, on devices with warps: bound by reading w once.
 *
 * SPAN neighbouring lanes share a row of w, or SPLIT such teams do; a team takes ROWS rows at a time and of
 * each VECTORS chunks for each lane, all of them loaded before the first is used. A chunk is 16 bytes of a plain type, or
 * 8 elements of a piece of 32 of a block, which is read in place (blocks.h). COLS rows of x are multiplied with what was
 * loaded; they come from the first cache.
 *
 * WEIGHTS 2 or 3: the same rows of x with several weights, whose groups follow each other. GATED: of two weights that are
 * alike, y = silu(sum of the first) * sum of the second. ADDED: z is added to y, to each its own, and those of several are
 * as far apart. NORMED: x is rms_norm(x) * nw; as the
 * norm is one number for a row, it multiplies the sums. Groups write that x for others.
 *
 * STAGED: one row of x, and a weight in blocks that are copied in pieces of 16 bytes to local memory, by the warp that
 * multiplies them, STAGES - 1 steps ahead. Then a lane has a whole piece of 32 elements, and multiplies it with digits of x
 * (blocks.h). ROWS are those of a warp here, AT_ONCE of which are in a step, and PIECES the most that a row of x has.
 *
 * STREAMED: one row of x, which a group copies to local memory, XS floats at most, and a weight of a plain type. A warp takes
 * a row of w after the other, whatever groups there are, and loads the next VECTORS chunks for each lane before it adds up
 * what lanes have: the first ones before x is there.
 *
 * In a merged kernel these two load the first pieces of the weight before they wait for what earlier steps write.
 *
 * Rows of w and x lie along k without gaps; those of x, and of plain types of w, begin at multiples of 16 bytes, and k
 * fills whole chunks.
 */
#if MERGED
#define KEEP_BARRIER(p) ((p).grid_barrier = GRID_BARRIER)
#else
#define KEEP_BARRIER(p)
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef NORMED
#define NORMED 0
#endif
#ifndef STREAMED
#define STREAMED 0
#define XS 0
#endif
#define TEAMS (LANES / SPAN)
#define SLOTS (TEAMS / SPLIT)
#define ALL_ROWS (GATED ? 2 * ROWS : ROWS) /* of both weights */
#define SUMS (ALL_ROWS * COLS)
#if !W_NBYTES
#define ELEMS_PER_CHUNK 8
#endif
#if STAGED || STREAMED
#define NORMS TEAMS /* parts of the sum of squares */
#else
#define NORMS SPLIT
#endif
#if !STAGED
#define STAGED_CHUNKS (STREAMED ? XS / 4 : 1)
#endif
#define STRETCH (SPLIT * SPAN * VECTORS * ELEMS_PER_CHUNK)

FN void four_floats(float *to, GLOBAL const u8 *from) {
  u4 four = LOAD16(from);
  to[0] = FLOAT_OF_BITS(four.x), to[1] = FLOAT_OF_BITS(four.y);
  to[2] = FLOAT_OF_BITS(four.z), to[3] = FLOAT_OF_BITS(four.w);
}

/* Elements k .. k + 3 of row c of x. */
FN void load_floats(float *to, float *square, const Product p, int c, int k) {
  four_floats(to, p.x + MIN(c, p.columns - 1) * p.sx + (i64)k * 4);
#if NORMED
  float nw[4];
  four_floats(nw, p.nw + (i64)k * 4);
  UNROLL for (int j = 0; j < 4; j++) {
    *square += to[j] * to[j];
    to[j] *= nw[j];
  }
#endif
}

/* One stretch along k from `k` on, in steps of SPAN chunks. */
#if STAGED || STREAMED
#elif W_NBYTES
FN void add_stretch(float *sums, float *squares, GLOBAL const u8 *const *wr, const Product p, int k) {
  int nk = p.nk;
  u4 v[ALL_ROWS * VECTORS];
  u4 none;
  none.x = 0u, none.y = 0u, none.z = 0u, none.w = 0u;
  UNROLL for (int i = 0; i < VECTORS; i++) {
    UNROLL for (int r = 0; r < ALL_ROWS; r++) {
      int at = k + i * SPAN * ELEMS_PER_CHUNK;
      v[i * ALL_ROWS + r] = at < nk ? LOAD16_ONCE(wr[r] + (i64)at * W_NBYTES) : none;
    }
  }
  UNROLL for (int i = 0; i < VECTORS; i++) {
    int at = k + i * SPAN * ELEMS_PER_CHUNK;
    if (at >= nk) break;
    float weights[ALL_ROWS * ELEMS_PER_CHUNK];
    UNROLL for (int r = 0; r < ALL_ROWS; r++) unpack(weights + r * ELEMS_PER_CHUNK, v[i * ALL_ROWS + r]);
    UNROLL for (int c = 0; c < COLS; c++) {
      float xv[ELEMS_PER_CHUNK];
      UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j += 4) load_floats(xv + j, squares + c, p, c, at + j);
      UNROLL for (int r = 0; r < ALL_ROWS; r++) {
        UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) sums[r * COLS + c] += weights[r * ELEMS_PER_CHUNK + j] * xv[j];
      }
    }
  }
}
#else
FN void add_stretch(float *sums, float *squares, GLOBAL const u8 *const *wr, const Product p, int k) {
  int nk = p.nk;
  u32 words[VECTORS * ALL_ROWS * 2];
  float scales[VECTORS * ALL_ROWS * PARTS];
#if HAS_MIN
  float mins[VECTORS * ALL_ROWS * PARTS];
#endif
  UNROLL for (int i = 0; i < VECTORS; i++) {
    int at = MIN(k + i * SPAN * ELEMS_PER_CHUNK, nk - ELEMS_PER_CHUNK), s = at / 32 % PER_BLOCK, t = at / 8 % 4;
    UNROLL for (int r = 0; r < ALL_ROWS; r++) {
      GLOBAL const u8 *block = wr[r] + (i64)(at / BLOCK_ELEMENTS) * BLOCK_NBYTES;
      int j = i * ALL_ROWS + r;
      unpack_words(words + j * 2, words + j * 2 + 1, block, 0, s, t);
      UNROLL for (int part = 0; part < PARTS; part++) {
        scales[j * PARTS + part] = block_scale(block, s * PARTS + part);
#if HAS_MIN
        mins[j * PARTS + part] = block_min(block, s * PARTS + part);
#endif
      }
    }
  }
  UNROLL for (int i = 0; i < VECTORS; i++) {
    int at = k + i * SPAN * ELEMS_PER_CHUNK;
    if (at >= nk) break;
    UNROLL for (int c = 0; c < COLS; c++) {
      int first = at / 32 * 32 + at / 8 % 4 * 4;
      float xv[8];
      load_floats(xv, squares + c, p, c, first);
      load_floats(xv + 4, squares + c, p, c, first + 16);
      UNROLL for (int r = 0; r < ALL_ROWS; r++) {
        int j = i * ALL_ROWS + r;
        float part[2] = {0.0f, 0.0f};
        UNROLL for (int b = 0; b < 8; b++)
          part[b / 4] += (float)(i8)(words[j * 2 + b / 4] >> b % 4 * 8) * xv[OF_BYTE(b)];
#if PARTS == 1
        sums[r * COLS + c] += (part[0] + part[1]) * scales[j];
#else
        sums[r * COLS + c] += part[0] * scales[j * 2] + part[1] * scales[j * 2 + 1];
#endif
#if HAS_MIN
        float low = xv[0] + xv[1] + (xv[2] + xv[3]), high = xv[4] + xv[5] + (xv[6] + xv[7]);
        sums[r * COLS + c] += low * mins[j * PARTS] + high * mins[j * PARTS + PARTS - 1];
#endif
      }
    }
  }
}
#endif

#if NORMED
FN float scale_of_norm(const Product p, LOCAL_PTR const float *norms, int c) {
  float square = 0.0f;
  for (int s = 0; s < NORMS; s++) square += norms[s * COLS + c];
  return 1.0f / SQRT(square / (float)p.nk + p.eps);
}
#define SCALE_OF_NORM(c) scale_of_norm(p, norms, (c))
#else
#define SCALE_OF_NORM(c) 1.0f
#endif

FN void store(const Product p, int n, int c, float sum) {
  if (n >= p.rows || c >= p.columns) return;
#if ADDED
  sum += READ_F32(p.z + c * p.sz_column + n * p.sz_row);
#endif
  F32_AT(p.y + c * p.sy_column + n * p.sy_row) = sum;
}

#if STAGED
/* Row `i` of a warp whose rows begin with n0, below 0 the last; of a gated product each is followed by that of the other
 * weight. */
FN GLOBAL const u8 *staged_row(const Product p, int n0, int i) {
#if GATED
  int n = i < 0 ? p.rows - 1 : MIN(n0 + i / 2, p.rows - 1);
  return i & 1 ? p.w1 + n * p.sw1 : p.w + n * p.sw;
#else
  return p.w + (i < 0 ? p.rows - 1 : MIN(n0 + i, p.rows - 1)) * p.sw;
#endif
}

#define STEP_NBYTES (WARP / PER_BLOCK * BLOCK_NBYTES) /* of a row */
#define ROW_CHUNKS ((STEP_NBYTES + 30) / 16)          /* it may begin and end anywhere in a chunk */
#define DIGIT_CHUNKS 7 /* of a piece of x: its digits, PLANE words each; unit and the sums of its halves */
#define STAGED_CHUNKS (PIECES * DIGIT_CHUNKS + TEAMS * STAGES * AT_ONCE * ROW_CHUNKS)
#define STEPS_OF(p) (((p).nk / 32 + WARP * SPLIT - 1) / (WARP * SPLIT))

/* Write x as digits; four lanes have a piece. */
FN void split_rows(const Product p, LOCAL_PTR u32 *digits, LOCAL_PTR float *norms, LOCAL_PTR float *scratch) {
  int chunks = p.nk / 8;
  float squares = 0.0f;
  for (int i0 = 0; i0 < chunks; i0 += LANES) {
    int i = MIN(i0 + LANE, chunks - 1), piece = i / 4, t = i % 4, exists = i0 + LANE < chunks;
    float x[8], v[8], square = 0.0f;
    u32 top = 0u, q[8];
    load_floats(x, &square, p, 0, piece * 32 + t * 4);
    load_floats(x + 4, &square, p, 0, piece * 32 + t * 4 + 16);
    squares += exists ? square : 0.0f;
    UNROLL for (int j = 0; j < 8; j++) {
      v[j] = x[OF_BYTE(j)];
      u32 size = BITS_OF_FLOAT(v[j]) & 0x7fffffffu;
      top = MAX(top, size);
    }
    UNROLL_MEETING for (int mask = 1; mask < 4; mask *= 2) {
      u32 other = BITS_OF_FLOAT(EXCHANGED(FLOAT_OF_BITS(top), mask, scratch));
      top = MAX(top, other);
    }
    float per_unit = per_unit_of(top), unit = unit_of(top);
    UNROLL for (int j = 0; j < 8; j++) q[j] = digits_of(v[j], per_unit);
    LOCAL_PTR u32 *to = digits + piece * (DIGIT_CHUNKS * 4) + t * 2;
    UNROLL for (int d = 0; d < DIGITS && exists; d++) {
      u32 pair = (u32)(d | (d + 4) << 4);
      LOCAL_PTR u32 *word = to + (2 - d) * PLANE;
      word[0] = PERMUTED(PERMUTED(q[0], q[1], pair), PERMUTED(q[2], q[3], pair), 0x5410u) ^ 0x80808080u;
      word[1] = PERMUTED(PERMUTED(q[4], q[5], pair), PERMUTED(q[6], q[7], pair), 0x5410u) ^ 0x80808080u;
    }
    LOCAL_PTR float *more = (LOCAL_PTR float *)(digits + piece * (DIGIT_CHUNKS * 4) + DIGITS * PLANE);
#if HAS_MIN
    float low = x[0] + x[1] + (x[2] + x[3]), high = x[4] + x[5] + (x[6] + x[7]);
    UNROLL_MEETING for (int mask = 1; mask < 4; mask *= 2) {
      low += EXCHANGED(low, mask, scratch);
      high += EXCHANGED(high, mask, scratch);
    }
    if (exists && t == 0) more[1] = low, more[2] = high;
#endif
    if (exists && t == 0) more[0] = unit;
  }
#if NORMED
  UNROLL_MEETING for (int mask = WARP / 2; mask > 0; mask /= 2) squares += EXCHANGED(squares, mask, scratch);
  if (WARP_LANE == 0) norms[WARP_INDEX] = squares;
#endif
}

/* Begin to copy a step of rows i0 .. i0 + AT_ONCE - 1; nothing is read behind the last row. */
FN void copy_rows(LOCAL_PTR u4 *to, const Product p, int n0, int i0, int first) {
  first *= WARP;
  int nbytes = MAX(0, MIN(STEP_NBYTES, (p.nk / 32 - first) / PER_BLOCK * BLOCK_NBYTES));
  UNROLL for (int r = 0; r < AT_ONCE; r++) {
    GLOBAL const u8 *row = staged_row(p, n0, i0 + r) + (i64)(first / PER_BLOCK) * BLOCK_NBYTES;
    GLOBAL const u8 *end = staged_row(p, n0, -2 + (GATED && (i0 + r) % 2)) + p.nk / BLOCK_ELEMENTS * BLOCK_NBYTES;
    int before = (int)((u64)row & 15);
    UNROLL for (int c = 0; c < ROW_CHUNKS; c += WARP) {
      int at = c + WARP_LANE;
      GLOBAL const u8 *from = row - before + at * 16;
      if (at * 16 >= before + nbytes) continue;
      if (from + 16 <= end) {
        COPY16(to + r * ROW_CHUNKS + at, from);
      } else {
        LOCAL_PTR u8 *bytes = (LOCAL_PTR u8 *)(to + r * ROW_CHUNKS + at);
        for (int j = 0; from + j < end; j++) bytes[j] = from[j];
      }
    }
  }
}

/* The signed bytes of piece `s` of a block that begins `at`. */
FN void unpack_piece(u32 *words, LOCAL_PTR const u8 *memory, int at, int s) {
#if defined(CODE_FIELDS)
  UNROLL for (int t = 0; t < 4; t++) unpack_words(words + 2 * t, words + 2 * t + 1, memory, at, s, t);
#else
#define RAW ((BLOCK_NBYTES - HEAD) / 4)
  LOCAL_PTR const u32 *from = (LOCAL_PTR const u32 *)(memory + ((at + HEAD) & ~3));
  u32 raw[RAW + 1];
  UNROLL for (int i = 0; i <= RAW; i++) raw[i] = from[i];
  UNROLL for (int i = 0; i < RAW; i++) raw[i] = FUNNEL(raw[i], raw[i + 1], (at + HEAD) % 4 * 8);
#if RAW == 8
  UNROLL for (int i = 0; i < 8; i++) words[i] = raw[i / 2 + i % 2 * 4];
#else
  UNROLL for (int t = 0; t < 4; t++) unpack_raw(words + 2 * t, words + 2 * t + 1, raw[t]);
#endif
#endif
}

/* Add the products of a step, a piece of each row for a lane, to the sums of its rows. */
FN void add_step(float *sums, LOCAL_PTR const u4 *stage, LOCAL_PTR const u4 *digits, const Product p, int n0, int i0,
                 int first) {
  int piece = first * WARP + WARP_LANE, s = WARP_LANE % PER_BLOCK, block = WARP_LANE / PER_BLOCK * BLOCK_NBYTES;
  if (piece >= p.nk / 32) return;
  u4 x[DIGIT_CHUNKS];
  UNROLL for (int c = 0; c < DIGIT_CHUNKS; c++) x[c] = digits[piece * DIGIT_CHUNKS + c];
  u32 xs[DIGITS * PLANE];
  UNROLL for (int c = 0; c < DIGIT_CHUNKS - 1; c++)
    xs[c * 4] = x[c].x, xs[c * 4 + 1] = x[c].y, xs[c * 4 + 2] = x[c].z, xs[c * 4 + 3] = x[c].w;
  const u4 more = x[DIGIT_CHUNKS - 1];
  UNROLL for (int r = 0; r < AT_ONCE; r++) {
    LOCAL_PTR const u8 *memory = (LOCAL_PTR const u8 *)(stage + r * ROW_CHUNKS);
    GLOBAL const u8 *row = staged_row(p, n0, i0 + r) + (i64)(first * WARP / PER_BLOCK) * BLOCK_NBYTES;
    int at = (int)((u64)row & 15) + block, part_of_digit[DIGITS * PARTS];
    u32 words[8];
    unpack_piece(words, memory, at, s);
    UNROLL for (int i = 0; i < DIGITS * PARTS; i++) part_of_digit[i] = 0;
    UNROLL for (int i = 0; i < DIGITS * PLANE; i++) {
      int to = i / PLANE * PARTS + i % PARTS;
      part_of_digit[to] = DOT4(words[i % PLANE], xs[i], part_of_digit[to]);
    }
    UNROLL for (int part = 0; part < PARTS; part++) {
      float scale = block_scale(memory + at, s * PARTS + part) * FLOAT_OF_BITS(more.x);
      float lower = (float)(part_of_digit[PARTS + part] * 256 + part_of_digit[2 * PARTS + part]);
      sums[r] += ((float)part_of_digit[part] * 65536.0f + lower) * scale;
#if HAS_MIN
      float of_x = FLOAT_OF_BITS(part ? more.z : more.y);
      if (PARTS == 1) of_x += FLOAT_OF_BITS(more.z);
      sums[r] += block_min(memory + at, s * PARTS + part) * of_x;
#endif
    }
  }
}

/* All rows of a warp by its share of k; to[r] gets that of row r, those of the other weight behind them. */
FN void staged_products(const Product p, int n0, int share, LOCAL_PTR float *to, LOCAL_PTR float *norms,
                        LOCAL_PTR u4 *staged, LOCAL_PTR float *scratch) {
  LOCAL_PTR u4 *stages = staged + STAGED_CHUNKS - (WARP_INDEX + 1) * STAGES * AT_ONCE * ROW_CHUNKS;
  int steps = STEPS_OF(p), all = steps * (ALL_ROWS / AT_ONCE), next_row = 0, next_step = 0;
#define COPY_NEXT(item)                                                                                       \
  do {                                                                                                        \
    if ((item) < all)                                                                                         \
      copy_rows(stages + (item) % STAGES * (AT_ONCE * ROW_CHUNKS), p, n0, next_row, next_step * SPLIT + share); \
    if (++next_step >= steps) next_step = 0, next_row += AT_ONCE;                                             \
    COPIES_CLOSE();                                                                                           \
  } while (0)
  for (int i = 0; i < STAGES - 1; i++) COPY_NEXT(i);
  AWAIT_ALL(p.grid_barrier);
  split_rows(p, (LOCAL_PTR u32 *)staged, norms, scratch);
  BARRIER();
  for (int i0 = 0, item = 0; i0 < ALL_ROWS; i0 += AT_ONCE) {
    float sums[AT_ONCE];
    UNROLL for (int r = 0; r < AT_ONCE; r++) sums[r] = 0.0f;
    for (int step = 0; step < steps; step++, item++) {
      COPIES_AWAIT(STAGES - 2);
      WARP_SYNC(); /* the others' copies are there too, and nobody reads the stage that is filled next */
      COPY_NEXT(item + STAGES - 1);
      add_step(sums, stages + item % STAGES * (AT_ONCE * ROW_CHUNKS), staged, p, n0, i0, step * SPLIT + share);
    }
    ADD_OVER_LANES(sums, AT_ONCE, WARP, scratch);
    int r = i0 + WARP_LANE / (WARP / AT_ONCE);
    if (WARP_LANE % (WARP / AT_ONCE) == 0) to[GATED ? r % 2 * ROWS + r / 2 : r] = sums[0];
  }
}
#endif

#if STREAMED
/* The chunks of one stretch, for row n of all weights, those of both of a gated product. */
FN void load_stretch(u4 *v, const Product all, int n, int k) {
  GLOBAL const u8 *row[ALL_ROWS];
#if GATED
  row[0] = all.w + n * all.sw, row[1] = all.w1 + n * all.sw1;
#else
  int part = 0;
#if WEIGHTS > 1
  for (; part < WEIGHTS - 1 && n >= part_of(all, part).rows; part++) n -= part_of(all, part).rows;
#endif
  const Product p = part_of(all, part);
  row[0] = p.w + n * p.sw;
#endif
  u4 none;
  none.x = 0u, none.y = 0u, none.z = 0u, none.w = 0u;
  UNROLL for (int i = 0; i < VECTORS; i++) {
    int at = k + (i * WARP + WARP_LANE) * ELEMS_PER_CHUNK;
    UNROLL for (int r = 0; r < ALL_ROWS; r++) v[i * ALL_ROWS + r] = at < all.nk ? LOAD16_ONCE(row[r] + (i64)at * W_NBYTES) : none;
  }
}

/* Where elements k .. k + 3 of x are: those that lanes read at the same time lie side by side. */
#define PLACE_OF(k) ((k) / 4 % (ELEMS_PER_CHUNK / 4) * (XS / ELEMS_PER_CHUNK) + (k) / ELEMS_PER_CHUNK)

FN void stream_rows(const Product all, LOCAL_PTR float *norms, LOCAL_PTR float *scratch, LOCAL_PTR u4 *staged) {
  int first = all.group * TEAMS, step = all.groups * TEAMS, total = all.rows, nk = all.nk;
#if WEIGHTS > 1 && !GATED
  total += all.rows1;
#endif
#if WEIGHTS > 2
  total += all.rows2;
#endif
  u4 v[ALL_ROWS * VECTORS];
  load_stretch(v, all, MIN(first + WARP_INDEX, total - 1), 0);
  AWAIT_ALL(all.grid_barrier);
  float square = 0.0f;
  for (int k = LANE * 4; k < nk; k += LANES * 4) {
    float x[4];
    u4 bits;
    load_floats(x, &square, all, 0, k);
    bits.x = BITS_OF_FLOAT(x[0]), bits.y = BITS_OF_FLOAT(x[1]), bits.z = BITS_OF_FLOAT(x[2]), bits.w = BITS_OF_FLOAT(x[3]);
    staged[PLACE_OF(k)] = bits;
  }
#if NORMED
  UNROLL_MEETING for (int mask = WARP / 2; mask > 0; mask /= 2) square += EXCHANGED(square, mask, scratch);
  if (WARP_LANE == 0) norms[WARP_INDEX] = square;
#endif
  BARRIER();
  float scale = 1.0f;
#if NORMED
  scale = scale_of_norm(all, norms, 0);
#endif
  for (int base = first; base < total; base += step) {
    int n = base + WARP_INDEX;
    float sums[ALL_ROWS];
    UNROLL for (int r = 0; r < ALL_ROWS; r++) sums[r] = 0.0f;
    for (int k = 0; k < nk; k += WARP * VECTORS * ELEMS_PER_CHUNK) {
      int next_k = k + WARP * VECTORS * ELEMS_PER_CHUNK, next_base = base;
      if (next_k >= nk) next_k = 0, next_base += step;
      UNROLL for (int i = 0; i < VECTORS; i++) {
        int at = k + (i * WARP + WARP_LANE) * ELEMS_PER_CHUNK;
        if (at >= nk) break;
        float x[ELEMS_PER_CHUNK];
        UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j += 4) {
          u4 bits = staged[PLACE_OF(at + j)];
          x[j] = FLOAT_OF_BITS(bits.x), x[j + 1] = FLOAT_OF_BITS(bits.y);
          x[j + 2] = FLOAT_OF_BITS(bits.z), x[j + 3] = FLOAT_OF_BITS(bits.w);
        }
        UNROLL for (int r = 0; r < ALL_ROWS; r++) {
          float weights[ELEMS_PER_CHUNK];
          unpack(weights, v[i * ALL_ROWS + r]);
          UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) sums[r] += weights[j] * x[j];
        }
      }
      if (next_base < total) load_stretch(v, all, MIN(next_base + WARP_INDEX, total - 1), next_k);
    }
    ADD_OVER_LANES(sums, ALL_ROWS, WARP, scratch);
    float sum = sums[0] * scale;
#if GATED /* that of the second weight is in the upper lanes */
    float up = EXCHANGED(sum, WARP / 2, scratch);
    sum = sum / (EXP(-sum) + 1.0f) * up;
#endif
    if (WARP_LANE == 0 && n < total) {
      int part = 0;
#if WEIGHTS > 1 && !GATED
      for (; part < WEIGHTS - 1 && n >= part_of(all, part).rows; part++) n -= part_of(all, part).rows;
#endif
      store(part_of(all, part), n, 0, sum);
    }
  }
}
#endif

/* What a norm makes of x, some elements by each group. */
FN void store_normed(const Product p, LOCAL_PTR const float *norms) {
#if NORMED
  for (int c = 0; c < p.columns && LANE < WARP; c++) {
    float scale = SCALE_OF_NORM(c);
    for (int k = p.group * WARP + LANE; k < p.nk; k += p.groups * WARP)
      F32_AT(p.ny + c * p.sny + (i64)k * 4) = READ_F32(p.x + c * p.sx + (i64)k * 4) * scale * READ_F32(p.nw + (i64)k * 4);
  }
#endif
}

FN void product(const Product all, LOCAL_PTR float *results, LOCAL_PTR float *norms, LOCAL_PTR float *scratch,
                LOCAL_PTR u4 *staged) {
#if STREAMED
  stream_rows(all, norms, scratch, staged);
  store_normed(all, norms);
#else
  int lane = LANE % SPAN, share = LANE / SPAN % SPLIT, slot = LANE / SPAN / SPLIT, part = 0, group = all.group;
#if WEIGHTS > 1 && !GATED
  for (; part < WEIGHTS - 1; part++) {
    int count = (part_of(all, part).rows + SLOTS * ROWS - 1) / (SLOTS * ROWS);
    if (group < count) break;
    group -= count;
  }
#endif
  const Product p = part_of(all, part);
  int n0 = (group * SLOTS + slot) * ROWS;
#if !STAGED
  AWAIT_ALL(all.grid_barrier);
  GLOBAL const u8 *wr[ALL_ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) {
    int n = MAX(MIN(n0 + r, p.rows - 1), 0);
    wr[r] = p.w + n * p.sw;
#if GATED
    wr[ROWS + r] = p.w1 + n * p.sw1;
#endif
  }
  float sums[SUMS], squares[COLS];
  UNROLL for (int i = 0; i < SUMS; i++) sums[i] = 0.0f;
  UNROLL for (int i = 0; i < COLS; i++) squares[i] = 0.0f;
  for (int k = (share * VECTORS * SPAN + lane) * ELEMS_PER_CHUNK; k < p.nk; k += STRETCH)
    add_stretch(sums, squares, wr, p, k);
  ADD_OVER_LANES(sums, SUMS, SPAN, scratch);
#endif
#define KEPT (SUMS > SPAN ? SUMS / SPAN : 1) /* sums that a lane holds now */
#define APART (SPAN > SUMS ? SPAN / SUMS : 1) /* lanes from one that holds some to the next */
#if STAGED || SPLIT > 1 || GATED || NORMED
#if STAGED
  staged_products(p, n0, share, results + (slot * SPLIT + share) * SUMS, norms, staged, scratch);
#else
  if (lane % APART == 0) {
    UNROLL for (int j = 0; j < KEPT; j++) results[(slot * SPLIT + share) * SUMS + lane / APART * KEPT + j] = sums[j];
  }
#if NORMED
  UNROLL_MEETING for (int c = 0; c < COLS; c++) {
    UNROLL_MEETING for (int mask = SPAN / 2; mask > 0; mask /= 2) squares[c] += EXCHANGED(squares[c], mask, scratch);
    if (lane == 0 && slot == 0) norms[share * COLS + c] = squares[c];
  }
#endif
#endif
  BARRIER();
  for (int i = LANE; i < SLOTS * ROWS * COLS; i += LANES) {
    LOCAL_PTR const float *from = results + i / (ROWS * COLS) * SPLIT * SUMS + i % (ROWS * COLS);
    float sum = 0.0f, scale = SCALE_OF_NORM(i % COLS);
    for (int s = 0; s < SPLIT; s++) sum += from[s * SUMS];
    sum *= scale;
#if GATED
    float up = 0.0f;
    for (int s = 0; s < SPLIT; s++) up += from[s * SUMS + ROWS * COLS];
    sum = sum / (EXP(-sum) + 1.0f) * (up * scale);
#endif
    store(p, group * SLOTS * ROWS + i / COLS, i % COLS, sum);
  }
  store_normed(all, norms);
#else
  if (lane % APART == 0) {
    UNROLL for (int j = 0; j < KEPT; j++) {
      int i = lane / APART * KEPT + j;
      store(p, n0 + i / COLS, i % COLS, sums[j]);
    }
  }
#endif
#endif
}

#if WEIGHTS > 1
#define SECOND , GLOBAL const u8 *w1, Tens tw1, GLOBAL u8 *y1, Tens ty1
#else
#define SECOND
#endif
#if WEIGHTS > 2
#define THIRD , GLOBAL const u8 *w2, Tens tw2, GLOBAL u8 *y2, Tens ty2
#else
#define THIRD
#endif
#if ADDED && WEIGHTS > 2
#define ADDEND , GLOBAL const u8 *z, Tens tz, GLOBAL const u8 *z1, Tens tz1, GLOBAL const u8 *z2, Tens tz2
#elif ADDED && WEIGHTS > 1
#define ADDEND , GLOBAL const u8 *z, Tens tz, GLOBAL const u8 *z1, Tens tz1
#elif ADDED
#define ADDEND , GLOBAL const u8 *z, Tens tz
#else
#define ADDEND
#endif

#if NORMED
#define NORM , GLOBAL const u8 *nw, Tens tn, GLOBAL u8 *ny, Tens tny, float eps
#else
#define NORM
#endif
#define LOCALS                       \
  LOCAL float results[TEAMS * SUMS]; \
  LOCAL float norms[NORMS * COLS];   \
  LOCAL float scratch[LANES];        \
  LOCAL u4 staged[STAGED_CHUNKS]

/* Groups: (n, rows of x / COLS, batches / joined). */
KERNEL(matvec_rows)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty,
                    int joined SECOND THIRD ADDEND NORM) {
  LOCALS;
  Product p = batch_product(w, tw, x, tx, y, ty, GROUP(2), GROUP(1) * COLS, joined);
  p.group = GROUP(0), p.groups = GROUPS(0);
  KEEP_BARRIER(p);
#if WEIGHTS > 1
  Product one = batch_product(w1, tw1, x, tx, y1, ty1, GROUP(2), GROUP(1) * COLS, 1);
  p.w1 = one.w, p.y1 = one.y, p.sw1 = one.sw, p.sy1_column = one.sy_column, p.sy1_row = one.sy_row, p.rows1 = one.rows;
#endif
#if WEIGHTS > 2
  Product two = batch_product(w2, tw2, x, tx, y2, ty2, GROUP(2), GROUP(1) * COLS, 1);
  p.w2 = two.w, p.y2 = two.y, p.sw2 = two.sw, p.sy2_column = two.sy_column, p.sy2_row = two.sy_row, p.rows2 = two.rows;
#endif
#if ADDED
  int b0 = GROUP(2) / tx.n[1], b1 = GROUP(2) % tx.n[1];
#define ADDED_FROM(z, tz) (z + tz.off + b0 * tz.s[0] + b1 * tz.s[1] + GROUP(1) * COLS * tz.s[2])
  p.z = ADDED_FROM(z, tz), p.sz_column = tz.s[2], p.sz_row = tz.s[3];
#if WEIGHTS > 1
  p.z1 = p.z2 = ADDED_FROM(z1, tz1);
#endif
#if WEIGHTS > 2
  p.z2 = ADDED_FROM(z2, tz2);
#endif
#endif
#if NORMED
  p.nw = nw + tn.off, p.ny = ny + tny.off + GROUP(1) * COLS * tny.s[2], p.sny = tny.s[2], p.eps = eps;
#endif
  product(p, results, norms, scratch, staged);
}

/* Groups: (n, T * U, 1). */
KERNEL(matvec_rows_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *ids, Tens ti,
                       GLOBAL u8 *y, Tens ty, GLOBAL i32 *fault, int code SECOND) {
  LOCALS;
  AWAIT_ALL(GRID_BARRIER); /* for ids */
  Product p = chosen_product(w, tw, x, tx, ids, ti, y, ty, GROUP(1), fault, code);
  p.group = GROUP(0), p.groups = GROUPS(0);
  KEEP_BARRIER(p);
#if WEIGHTS > 1
  Product one = chosen_product(w1, tw1, x, tx, ids, ti, y1, ty1, GROUP(1), fault, code);
  p.w1 = one.w, p.sw1 = one.sw;
#endif
  product(p, results, norms, scratch, staged);
}
