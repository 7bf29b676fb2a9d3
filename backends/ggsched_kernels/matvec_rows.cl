/* y[m, n] = sum_k x[m, k] w[n, k] for few rows m of x, on devices with warps: bound by reading w once.
 *
 * SPAN neighbouring lanes share a row of w, or SPLIT such teams do; a team takes ROWS rows at a time and of
 * each VECTORS chunks for each lane, all of them loaded before the first is used. A chunk is 16 bytes of a plain type, or
 * 8 elements of a piece of 32 of a block, which is read in place (blocks.h). COLS rows of x are multiplied with what was
 * loaded; they come from the first cache.
 *
 * WEIGHTS 2 or 3: the same rows of x with several weights, whose groups follow each other. GATED: of two weights that are
 * alike, y = silu(sum of the first) * sum of the second. ADDED: z is added to y. NORMED: x is rms_norm(x) * nw; as the
 * norm is one number for a row, it multiplies the sums. The first group writes that x for others.
 *
 * Rows of w and x lie along k without gaps; those of x, and of plain types of w, begin at multiples of 16 bytes, and k
 * fills whole chunks.
 */
#ifndef GATED
#define GATED 0
#endif
#ifndef NORMED
#define NORMED 0
#endif
#define TEAMS (LANES / SPAN)
#define SLOTS (TEAMS / SPLIT)
#define ALL_ROWS (GATED ? 2 * ROWS : ROWS) /* of both weights */
#define SUMS (ALL_ROWS * COLS)
#if !W_NBYTES
#define ELEMS_PER_CHUNK 8
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
#if W_NBYTES
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
  for (int s = 0; s < SPLIT; s++) square += norms[s * COLS + c];
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

FN void product(const Product all, LOCAL_PTR float *results, LOCAL_PTR float *norms, LOCAL_PTR float *scratch) {
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
#define KEPT (SUMS > SPAN ? SUMS / SPAN : 1) /* sums that a lane holds now */
#define APART (SPAN > SUMS ? SPAN / SUMS : 1) /* lanes from one that holds some to the next */
#if SPLIT > 1 || GATED || NORMED
  if (lane % APART == 0) {
    UNROLL for (int j = 0; j < KEPT; j++) results[(slot * SPLIT + share) * SUMS + lane / APART * KEPT + j] = sums[j];
  }
#if NORMED
  UNROLL_MEETING for (int c = 0; c < COLS; c++) {
    UNROLL_MEETING for (int mask = SPAN / 2; mask > 0; mask /= 2) squares[c] += EXCHANGED(squares[c], mask, scratch);
    if (lane == 0 && slot == 0) norms[share * COLS + c] = squares[c];
  }
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
#if NORMED
  for (int c = 0; c < p.columns && all.group == 0; c++) {
    float scale = SCALE_OF_NORM(c);
    for (int k = LANE; k < p.nk; k += LANES)
      F32_AT(p.ny + c * p.sny + (i64)k * 4) = READ_F32(p.x + c * p.sx + (i64)k * 4) * scale * READ_F32(p.nw + (i64)k * 4);
  }
#endif
#else
  if (lane % APART == 0) {
    UNROLL for (int j = 0; j < KEPT; j++) {
      int i = lane / APART * KEPT + j;
      store(p, n0 + i / COLS, i % COLS, sums[j]);
    }
  }
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
#if ADDED
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
  LOCAL float norms[SPLIT * COLS];   \
  LOCAL float scratch[LANES]

/* Groups: (n, rows of x / COLS, batches / joined). */
KERNEL(matvec_rows)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty,
                    int joined SECOND THIRD ADDEND NORM) {
  LOCALS;
  Product p = batch_product(w, tw, x, tx, y, ty, GROUP(2), GROUP(1) * COLS, joined);
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
  p.z = z + tz.off + b0 * tz.s[0] + b1 * tz.s[1] + GROUP(1) * COLS * tz.s[2];
  p.sz_column = tz.s[2], p.sz_row = tz.s[3];
#endif
#if NORMED
  p.nw = nw + tn.off, p.ny = ny + tny.off + GROUP(1) * COLS * tny.s[2], p.sny = tny.s[2], p.eps = eps;
#endif
  product(p, results, norms, scratch);
}

/* Groups: (n, T * U, 1). */
KERNEL(matvec_rows_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *ids, Tens ti,
                       GLOBAL u8 *y, Tens ty, GLOBAL i32 *fault, int code SECOND) {
  LOCALS;
  Product p = chosen_product(w, tw, x, tx, ids, ti, y, ty, GROUP(1), fault, code);
#if WEIGHTS > 1
  Product one = chosen_product(w1, tw1, x, tx, ids, ti, y1, ty1, GROUP(1), fault, code);
  p.w1 = one.w, p.sw1 = one.sw;
#endif
  product(p, results, norms, scratch);
}
