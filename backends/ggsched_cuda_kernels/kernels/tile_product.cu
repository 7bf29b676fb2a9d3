/* y[m, n] = sum_k x[m, k] w[n, k] for many rows m on tensor cores, behind weights.h and blocks.h; for one weight, or
 * (ROUTED 1) for the weights of chosen experts in one launch, by the route that list_rows prepares.
 *
 * A thread block computes at most BM rows against BN rows of w. Stretches of KB blocks of 32 elements of both come to
 * shared memory by asynchronous copies, STAGES of them; w comes packed, as it lies. Each warp
 * unpacks its 16 * WT rows of w straight into the fragments of mma.m16n8k16, of which w is the first
 * operand. Lane 4 g + t of a warp needs, of rows g and g + 8 of w and of row g of x, any 8 elements of 32,
 * as long as they are the same in both: it takes those that lie side by side in the packed form.
 *
 * Numbers of block types enter the product as small integers or e2m1, exact in f16; the scale of a
 * block multiplies the f32 sum of its 32 products. So weights are not rounded, and scales of any size are
 * right. Rows of x are f16 (for bf16 weights bf16), prepared by to_halves: PLANES 1, rounded once; PLANES 2,
 * a second number for what is left of each. Rows of f16 are scaled by powers of two (SCALED).
 *
 * Types whose bytes are put together from bit fields (CODE_FIELDS) go the same way: a signed byte is exact in f16. A piece of
 * 32 elements has PARTS scales, the first for the first product of 16 elements, the second for the other; what is added to
 * the elements of a part (HAS_MIN) multiplies the sums of x, which a product with ones gives every lane for its columns.
 *
 * LONG_BLOCKS: a block has more elements than a stretch, BLOCK_STRETCHES times as many. Blocks are held in memory of their
 * own, two for each row of w, and the next one is copied a share with each stretch of x.
 *
 * GROUP_MMA: groups of four warps multiply (group_mma.h), 64 or 128 rows of x. Warps unpack their rows of w, times their scales,
 * to f16; rows of x lie in tiles of 64 elements. For one weight, PLANES 1, and k of whole stretches.
 *
 * WEIGHTS 2 or 3: products of the same rows with several weights, whose columns follow each other.
 *
 * CONSTANT_W says that nobody writes the weights: their first stretches are requested while the predecessor still runs.
 *
 * Where rows are few, columns alone give too few thread blocks to keep memory busy. Then SPLITS of them, a cluster, share
 * the sum: each takes a stretch of k, stores its sums in its own shared memory over the stretches, and adds up, in the
 * order of the stretches, what all have for its share of the results. */
#define BN (LANES / 2 * WT)
#define TT (BM / 8)
#if defined(W_BF16)
#define SCALED 0
#else
#define SCALED 1
#endif
/* Stretches that are requested before they are needed; by groups the products of one are under way when the next is waited for. */
#define AHEAD (STAGES - 1 - GROUP_MMA)
#if W_NBYTES
#define UNIT (32 * W_NBYTES) /* bytes of 32 elements */
#define CHUNKS (KB * UNIT / 16) /* pieces of 16 bytes that hold a row's stretch, or block, wherever it begins */
#elif BLOCK_ELEMENTS > 32
#define LONG_BLOCKS 1
#define BLOCK_STRETCHES (PER_BLOCK / KB)
#define SHARES (BLOCK_STRETCHES - AHEAD + 1) /* the last one has arrived when the block begins */
#if PER_BLOCK % KB || SHARES < 1
#error "a block is not a number of stretches, or of too few for the stages"
#endif
#define CHUNKS ((16 - GRANULE + BLOCK_NBYTES + 15) / 16)
#else
#define UNIT BLOCK_NBYTES
#define CHUNKS ((15 + KB * UNIT + 15) / 16)
#endif
#ifndef LONG_BLOCKS
#define LONG_BLOCKS 0
#define BLOCK_STRETCHES 1
#endif
#if defined(W_Q4_0) || defined(W_MXFP4) || defined(CODE_FIELDS)
#define NIBBLES 1 /* a lane takes elements 4 t .. and 16 + 4 t .. */
#else
#define NIBBLES 0
#endif
/* What lanes of a warp read at once lies in different banks of shared memory. */
#if GROUP_MMA
#define X_PITCH (KB * 64)
#define ALIGNMENT 1024
#else
#define X_PITCH (KB * 64 + (NIBBLES ? 32 : 64)) /* KB is even */
#endif
#if W_NBYTES
#define W_PITCH X_PITCH
#else
#define W_PITCH (16 * (CHUNKS | 1))
#endif
#define X_NBYTES (PLANES * BM * X_PITCH)
#if SPLITS == 1
#define SPLIT 0
#define COLUMN_TILE GROUP(0)
#define ROW_TILE GROUP(1)
#else
#define SPLIT GROUP(0)
#define COLUMN_TILE GROUP(1)
#define ROW_TILE GROUP(2)
#endif
#if LONG_BLOCKS
#define STAGE_NBYTES X_NBYTES
#define ALL_NBYTES (STAGES * X_NBYTES + 2 * BN * W_PITCH)
#else
#define STAGE_NBYTES (X_NBYTES + BN * W_PITCH)
#define ALL_NBYTES (STAGES * STAGE_NBYTES)
#endif

static const int AT_ONCE = TURNS; /* steps of the inner loop that are under way together */

FN u32 sub_halves_(u32 a, u32 b) {
  u32 difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}
#define SUB_HALVES(a, b) sub_halves_((a), (b))

/* Four bytes from any place behind an aligned one. */
FN u32 any_word(LOCAL_PTR const u8 *base, int at) {
  LOCAL_PTR const u32 *words = (LOCAL_PTR const u32 *)(base + (at & ~3));
  return FUNNEL(words[0], words[1], 8 * (at & 3));
}

/* Four signed bytes as two pairs. */
FN void pairs_of(u32 *to, u32 bytes) {
  bytes ^= 0x80808080u; /* 128 more than they were; 1024 + byte in f16 is 0x6400 | byte */
  to[0] = SUB_HALVES(PERMUTED(bytes, 0x64646464u, 0x4140), 0x64806480u);
  to[1] = SUB_HALVES(PERMUTED(bytes, 0x64646464u, 0x4342), 0x64806480u);
}

#if GROUP_MMA
/* Bytes 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 behind byte `at`. */
FN u32 two_and_two(LOCAL_PTR const u8 *row, int at, int t) {
#if !defined(W_MXFP4) /* blocks begin at even bytes */
  LOCAL_PTR const u16 *from = (LOCAL_PTR const u16 *)(row + at + 2 * t);
  return from[0] | (u32)from[4] << 16;
#else
  return PERMUTED(any_word(row, at + 2 * t), any_word(row, at + 2 * t + 8), 0x5410);
#endif
}
#endif

/* The 8 elements of lane t of piece j of 32 elements behind byte `at` of `row`, as pairs. For GROUP_MMA those of elements 2 t
 * and 2 t + 8 of the first 16 and of the others, else as x_fragment has them. */
FN void fragment(u32 *to, LOCAL_PTR const u8 *row, int at, int j, int t) {
#if W_NBYTES
  u4 v = LOAD16(row + at + j * UNIT + 16 * t);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#elif defined(CODE_FIELDS)
  u32 first, second;
#if LONG_BLOCKS
  unpack_words(&first, &second, row, at, j, t);
#else
  unpack_words(&first, &second, row, at + j * UNIT, 0, t);
#endif
  pairs_of(to, first);
  pairs_of(to + 2, second);
#elif NIBBLES
  /* Bytes 4 t .. 4 t + 3: elements from 4 t in their low halves, from 16 + 4 t in the high ones. */
#if GROUP_MMA
  u32 bytes = two_and_two(row, at + j * UNIT + HEAD, t);
#else
  u32 bytes = any_word(row, at + j * UNIT + HEAD + 4 * t);
#endif
  UNROLL for (int i = 0; i < 2; i++) {
#if defined(W_MXFP4)
    /* e2m1 moved to the ends of the fields of f16: the number times 2^-14, subnormal or not. */
    u32 v = PERMUTED(bytes, 0, i ? 0x3424 : 0x1404);
    to[i] = (v << 4 & 0x80008000u) | (v << 1 & 0x0e000e00u);
    to[2 + i] = (v & 0x80008000u) | (v >> 3 & 0x0e000e00u);
#else
    u32 v = PERMUTED(bytes, 0, i ? 0x4342 : 0x4140);
    to[i] = SUB_HALVES((v & 0x000f000fu) | 0x64006400u, 0x64086408u);
    to[2 + i] = SUB_HALVES((v >> 4 & 0x000f000fu) | 0x64006400u, 0x64086408u);
#endif
  }
#elif GROUP_MMA
  UNROLL for (int i = 0; i < 2; i++) pairs_of(to + 2 * i, two_and_two(row, at + j * UNIT + HEAD + 16 * i, t));
#else
  UNROLL for (int i = 0; i < 2; i++) pairs_of(to + 2 * i, any_word(row, at + j * UNIT + HEAD + 8 * t + 4 * i));
#endif
}

#if !W_NBYTES
/* What the products of part p of piece j are to be multiplied with. */
FN float scale_of(LOCAL_PTR const u8 *row, int at, int j, int p) {
#if LONG_BLOCKS
  return block_scale(row + at, j * PARTS + p);
#elif defined(CODE_FIELDS)
  return block_scale(row + at + j * UNIT, p);
#else
  return SCALE_OF(row + at + j * UNIT);
#endif
}
#if HAS_MIN
FN float min_of(LOCAL_PTR const u8 *row, int at, int j, int p) {
#if LONG_BLOCKS
  return block_min(row + at, j * PARTS + p);
#else
  return block_min(row + at + j * UNIT, p);
#endif
}
#endif

/* Add products of 8 rows of x with rows of w, whose scales are `first` and `second`. */
FN void add_scaled(float *sum, const float *products, float first, float second) {
  sum[0] += first * products[0], sum[1] += first * products[1];
  sum[2] += second * products[2], sum[3] += second * products[3];
}
#endif

FN void x_fragment(u32 *to, LOCAL_PTR const u8 *row, int t) {
#if NIBBLES
  LOCAL_PTR const uint2 *low = (LOCAL_PTR const uint2 *)(row + 8 * t);
  LOCAL_PTR const uint2 *high = (LOCAL_PTR const uint2 *)(row + 32 + 8 * t);
  to[0] = low->x, to[1] = low->y, to[2] = high->x, to[3] = high->y;
#else
  u4 v = LOAD16(row + 16 * t);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#endif
}

/* Where rows of x and w begin, and how far those of a plane and of w are apart. */
typedef struct {
  GLOBAL const u8 *x;
  i64 plane;
  LOCAL_PTR const i64 *xo;
  GLOBAL const u8 *w;
  i64 step;
  int count, columns, k;
} Rows;

/* Request stretch `it` of all rows of x, and of w. Rows that are not there are not copied: they go into no sum
 * that is stored. */
FN void fetch_rows(const Rows rows, LOCAL_PTR u8 *to, int it) {
  int first = it * KB, blocks = MIN(KB, (rows.k + 31) / 32 - first);
  UNROLL for (int p = 0; p < PLANES; p++) {
    for (int i = LANE; i < rows.count * (4 * KB); i += LANES) {
      int row = i / (4 * KB), c = i % (4 * KB);
#if GROUP_MMA
      int place = c / 8 * (BM * 128) + SWIZZLED(row, c % 8);
#else
      int place = (p * BM + row) * X_PITCH + 16 * c;
#endif
      if (c < 4 * blocks)
        COPY16(to + place, rows.x + rows.xo[row] + p * rows.plane + 64 * first + 16 * c);
    }
  }
}
#if !LONG_BLOCKS
FN void fetch_weights(const Rows rows, LOCAL_PTR u8 *to, int it) {
  int first = it * KB, blocks = MIN(KB, (rows.k + 31) / 32 - first);
  LOCAL_PTR u8 *w_to = to + X_NBYTES;
  for (int i = LANE; i < rows.columns * CHUNKS; i += LANES) {
    int row = i / CHUNKS, c = i % CHUNKS;
    GLOBAL const u8 *from = rows.w + row * rows.step + (i64)first * UNIT;
#if W_NBYTES
    if (first * 32 + c * 8 < rows.k)
      COPY16(w_to + row * W_PITCH + 16 * c, from + 16 * c);
    else
      *(LOCAL_PTR u4 *)(w_to + row * W_PITCH + 16 * c) = make_uint4(0, 0, 0, 0);
#else
    int ahead = (int)((u64)from & 15);
    if (16 * c < ahead + blocks * UNIT) COPY16(w_to + row * W_PITCH + 16 * c, from - ahead + 16 * c);
#endif
  }
}
#endif

#if LONG_BLOCKS
/* Request a share of block `block` of all rows of w. */
FN void fetch_block(const Rows rows, LOCAL_PTR u8 *stages, int block, int share, int shares) {
  LOCAL_PTR u8 *to = stages + STAGES * STAGE_NBYTES + block % 2 * (BN * W_PITCH);
  int all = rows.columns * CHUNKS, each = (all + shares - 1) / shares;
  for (int i = share * each + LANE; i < MIN(all, (share + 1) * each); i += LANES) {
    int row = i / CHUNKS, c = i % CHUNKS;
    GLOBAL const u8 *from = rows.w + row * rows.step + (i64)block * BLOCK_NBYTES;
    int ahead = (int)((u64)from & 15);
    if (16 * c < ahead + BLOCK_NBYTES) COPY16(to + row * W_PITCH + 16 * c, from - ahead + 16 * c);
  }
}
#endif

/* Store results of columns n and n + 8, for rows m and m + 1 each. */
FN void store_tile(const Rows rows, GLOBAL u8 *y, LOCAL_PTR const i64 *yo, LOCAL_PTR const float *scales, int n, int m,
                   float4 sums) {
  float v[4] = {sums.x, sums.y, sums.z, sums.w};
  UNROLL for (int i = 0; i < 4; i++) {
    int row = m + i % 2, column = n + i / 2 * 8;
    if (row >= rows.count || column >= rows.columns) continue;
    float x = v[i] * scales[row];
#if defined(W_MXFP4)
    x *= 32768.0f; /* 2^14 of the numbers, and SCALE_OF is half of the scale */
#endif
    ((GLOBAL float *)(y + yo[row]))[column] = x;
  }
}

/* Store the sums of all warps, or with the other thread blocks of the cluster a share of them. */
template <int T>
FN void store_sums(const Rows rows, LOCAL_PTR u8 *stages, GLOBAL u8 *y, LOCAL_PTR const i64 *yo,
                   LOCAL_PTR const float *scales, float (*sum)[T][4]) {
  int t = WARP_LANE % 4, n = WARP_INDEX * 16 * WT + WARP_LANE / 4;
#if SPLITS == 1
  BARRIER();
  UNROLL for (int i = 0; i < WT * T; i++) {
    float *v = sum[i / T][i % T];
    store_tile(rows, y, yo, scales, n + i / T * 16, i % T * 8 + 2 * t, make_float4(v[0], v[1], v[2], v[3]));
  }
#else
  const int share = (WT * T + SPLITS - 1) / SPLITS;
  LOCAL_PTR float4 *sums = (LOCAL_PTR float4 *)stages; /* [WT * T][LANES] */
  COPIES_AWAIT(0); /* none is left; racecheck does not count empty groups of copies */
  BARRIER();       /* all are done with their stretches */
  UNROLL for (int i = 0; i < WT * T; i++) {
    float *v = sum[i / T][i % T];
    sums[i * LANES + LANE] = make_float4(v[0], v[1], v[2], v[3]);
  }
  cluster_arrive_();
  cluster_await_();
  for (int i = SPLIT * share; i < MIN(WT * T, (SPLIT + 1) * share); i++) {
    float4 v = get4_(sums + i * LANES + LANE, 0);
    UNROLL for (int from = 1; from < SPLITS; from++) {
      float4 more = get4_(sums + i * LANES + LANE, from);
      v.x += more.x, v.y += more.y, v.z += more.z, v.w += more.w;
    }
    store_tile(rows, y, yo, scales, n + i / T * 16, i % T * 8 + 2 * t, v);
  }
  cluster_arrive_();
  cluster_await_(); /* nobody ends while others read its sums */
#endif
}


/* The same for T tiles of 8 rows of x. */
template <int T>
FN void product_of(const Rows rows, LOCAL_PTR u8 *stages, GLOBAL u8 *y, LOCAL_PTR const i64 *yo,
                   LOCAL_PTR const i64 *so, LOCAL_PTR float *scales) {
  int g = WARP_LANE / 4, t = WARP_LANE % 4, n = WARP_INDEX * 16 * WT + g;
  int all = (rows.k + 31) / 32, total = (all + KB - 1) / KB, each = (total + SPLITS - 1) / SPLITS;
  each = (each + BLOCK_STRETCHES - 1) / BLOCK_STRETCHES * BLOCK_STRETCHES;
  int start = SPLIT * each, steps = MIN(total, start + each);
  float sum[WT][T][4];
  UNROLL for (int wt = 0; wt < WT; wt++) {
    UNROLL for (int i = 0; i < 4 * T; i++) sum[wt][i / 4][i % 4] = 0.0f;
  }
#if LONG_BLOCKS
  if (start < steps) fetch_block(rows, stages, start / BLOCK_STRETCHES, 0, 1);
#else
  for (int it = start; it < MIN(steps, start + AHEAD); it++) {
    fetch_weights(rows, stages + it % STAGES * STAGE_NBYTES, it);
  }
#endif
#if CONSTANT_W
  EARLY_WAIT();
  EARLY_LET_GO();
#endif
  for (int it = start; it < start + AHEAD; it++) {
    if (it < steps) fetch_rows(rows, stages + it % STAGES * STAGE_NBYTES, it);
    COPIES_CLOSE();
  }
  /* Waited for when the sums are there. */
  float scale = SCALED && LANE < rows.count ? READ_F32(rows.x + so[LANE]) : 1.0f;
  for (int it = start; it < steps; it++) {
    COPIES_AWAIT(AHEAD - 1);
    BARRIER(); /* the stretch is there for all, and all are done with the one before it */
    int next = it + AHEAD;
    if (next < steps) fetch_rows(rows, stages + next % STAGES * STAGE_NBYTES, next);
#if LONG_BLOCKS
    int block = it / BLOCK_STRETCHES, share = it % BLOCK_STRETCHES;
    if (share < SHARES && (block + 1) * BLOCK_STRETCHES < steps) fetch_block(rows, stages, block + 1, share, SHARES);
#else
    if (next < steps) fetch_weights(rows, stages + next % STAGES * STAGE_NBYTES, next);
#endif
    COPIES_CLOSE();
    LOCAL_PTR const u8 *xs = stages + it % STAGES * STAGE_NBYTES;
#if LONG_BLOCKS
    LOCAL_PTR const u8 *ws = stages + STAGES * STAGE_NBYTES + block % 2 * (BN * W_PITCH);
    i64 ahead = (i64)block * BLOCK_NBYTES;
    int piece = share * KB; /* of the block */
#else
    LOCAL_PTR const u8 *ws = xs + X_NBYTES;
    i64 ahead = (i64)it * KB * UNIT;
    const int piece = 0;
#endif
    int blocks = MIN(KB, all - it * KB), at[WT][2];
    UNROLL for (int i = 0; i < 2 * WT; i++) {
      u32 begin = (u32)(u64)(rows.w + (n + 8 * i) * rows.step + ahead);
      at[i / 2][i % 2] = W_NBYTES ? 0 : begin & 15;
    }
    _Pragma("unroll AT_ONCE") for (int turn = 0; turn < PLANES * blocks; turn++) {
      int p = PLANES == 1 ? 0 : turn % PLANES, j = turn / PLANES;
      u32 b[T][4];
      UNROLL for (int i = 0; i < T; i++) x_fragment(b[i], xs + (p * BM + 8 * i + g) * X_PITCH + 64 * j, t);
#if HAS_MIN
      const u32 ones[4] = {0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u};
      float of_x[T][PARTS][2]; /* sums of rows 2 t and 2 t + 1 */
      UNROLL for (int i = 0; i < T * PARTS; i++) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        UNROLL for (int half = i % PARTS; half < 2; half += PARTS) MULTIPLY_HALVES(sums, ones, b[i / PARTS] + 2 * half);
        of_x[i / PARTS][i % PARTS][0] = sums[0], of_x[i / PARTS][i % PARTS][1] = sums[1];
      }
#endif
      UNROLL for (int wt = 0; wt < WT; wt++) {
        u32 of_g[4], of_g8[4];
        LOCAL_PTR const u8 *row = ws + (n + 16 * wt) * W_PITCH, *row8 = row + 8 * W_PITCH;
        fragment(of_g, row, at[wt][0], piece + j, t);
        fragment(of_g8, row8, at[wt][1], piece + j, t);
        u32 a0[4] = {of_g[0], of_g8[0], of_g[1], of_g8[1]};
        u32 a1[4] = {of_g[2], of_g8[2], of_g[3], of_g8[3]};
#if W_NBYTES
        UNROLL for (int i = 0; i < T; i++) {
          MULTIPLY_HALVES(sum[wt][i], a0, b[i]);
          MULTIPLY_HALVES(sum[wt][i], a1, b[i] + 2);
        }
#else
        UNROLL for (int part = 0; part < PARTS; part++) {
          float s0 = scale_of(row, at[wt][0], piece + j, part), s1 = scale_of(row8, at[wt][1], piece + j, part);
#if HAS_MIN
          float m0 = min_of(row, at[wt][0], piece + j, part), m1 = min_of(row8, at[wt][1], piece + j, part);
#endif
          UNROLL for (int i = 0; i < T; i++) {
            float products[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (part == 0) MULTIPLY_HALVES(products, a0, b[i]);
            if (part == PARTS - 1) MULTIPLY_HALVES(products, a1, b[i] + 2);
            add_scaled(sum[wt][i], products, s0, s1);
#if HAS_MIN
            float *of = of_x[i][part], twice[4] = {of[0], of[1], of[0], of[1]};
            add_scaled(sum[wt][i], twice, m0, m1);
#endif
          }
        }
#endif
      }
    }
  }
  if (LANE < rows.count) scales[LANE] = scale;
  store_sums<T>(rows, stages, y, yo, scales, sum);
}

#if GROUP_MMA
#if LONG_BLOCKS
/* What the elements of block `block` of a row are multiplied with (up[0]), so that the largest is at most 2^15, and what undoes
 * it. Each of four lanes looks at a part of the scales. */
FN void block_power(float *up, LOCAL_PTR const u8 *block, int t) {
  float top = 0.0f;
  UNROLL for (int part = t; part < PER_BLOCK * PARTS; part += 4) {
    float size = fabsf(block_scale(block, part)) * BYTE_LARGEST;
#if HAS_MIN
    size += fabsf(block_min(block, part));
#endif
    if (BITS_OF_FLOAT(size) < 0x7f800000u) top = MAX(top, size);
  }
  UNROLL for (int step = 1; step < 4; step *= 2) {
    float other = __shfl_xor_sync(0xffffffffu, top, step);
    top = MAX(top, other);
  }
  int power = top > 0.0f ? MIN(126, 141 - (int)(BITS_OF_FLOAT(top) >> 23)) : 0;
  up[0] = FLOAT_OF_BITS((127 + power) << 23), up[1] = FLOAT_OF_BITS((127 - power) << 23);
}

/* As `fragment`, times `up` and rounded to f16: lanes exchange what they have unpacked. */
FN void block_fragment(u32 *to, LOCAL_PTR const u8 *row, int at, int j, int t, float up) {
  LOCAL_PTR const u8 *block = row + at;
  u32 words[2];
  unpack_words(words, words + 1, row, at, j, t);
  UNROLL for (int half = 0; half < 2; half++) {
    int part = j * PARTS + half % PARTS, from = t / 2;
    u32 low = (u32)__shfl_sync(0xffffffffu, (int)words[half], from, 4);
    u32 high = (u32)__shfl_sync(0xffffffffu, (int)words[half], from + 2, 4);
    u32 pairs[2];
    pairs_of(pairs, PERMUTED(low, high, t % 2 ? 0x7632 : 0x5410));
    float scale = up * block_scale(block, part), min = 0.0f;
#if HAS_MIN
    min = up * block_min(block, part);
#endif
    UNROLL for (int i = 0; i < 2; i++) {
      float a = FLOAT_OF_HALF(pairs[i] & 0xffff), b = FLOAT_OF_HALF(pairs[i] >> 16);
      to[2 * half + i] = PAIR_OF(a * scale + min, b * scale + min);
    }
  }
}
#endif

#if !LONG_BLOCKS
#if defined(W_MXFP4)
#define NUMBERS 16384.0f /* what undoes the 2^-14 of `fragment` */
#else
#define NUMBERS 128.0f /* times numbers of 8 bits: at most 2^15 */
#endif
/* The power of two that scales of a stretch of a row are multiplied with, so that none is 2 or more, and what undoes it and NUMBERS.
 * Scales stay exact, so weights are rounded once. */
FN void stretch_scale(float *unit, LOCAL_PTR const u8 *row, int at) {
  u32 top = 1u;
  UNROLL for (int j = 0; j < KB; j++) {
    u32 power = BITS_OF_FLOAT(scale_of(row, at, j, 0)) >> 23 & 255u;
    top = MAX(top, power);
  }
  top = MIN(top, 253u); /* both are normal numbers; infinities and NaN stay what they are */
  unit[0] = FLOAT_OF_BITS((254u - top) << 23), unit[1] = FLOAT_OF_BITS(top << 23) * (1.0f / NUMBERS);
}
FN u32 multiply_pairs_(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
#define MULTIPLY_PAIRS(a, b) multiply_pairs_((a), (b))
#endif

/* The products of a unit, a stretch or a long block, are sums of the tensor cores, under way while the weights of the next piece
 * are unpacked, and then added to those of the units before. */
FN void product_of_groups(const Rows rows, LOCAL_PTR u8 *memory, GLOBAL u8 *y, LOCAL_PTR const i64 *yo,
                          LOCAL_PTR const i64 *so, LOCAL_PTR float *scales) {
  LOCAL_PTR u8 *stages = memory + (-LOCAL_ADDRESS(memory) & (ALIGNMENT - 1));
  int g = WARP_LANE / 4, t = WARP_LANE % 4, n = WARP_INDEX * 16 + g;
  int total = rows.k / (32 * KB), each = (total + SPLITS - 1) / SPLITS;
  each = (each + BLOCK_STRETCHES - 1) / BLOCK_STRETCHES * BLOCK_STRETCHES;
  int start = SPLIT * each, steps = MIN(total, start + each);
  float sum[1][TT][4], made[TT * 4], of_unit[2] = {0.0f, 0.0f}, up[2][2];
  u32 a[2][2][4];
  UNROLL for (int i = 0; i < TT * 4; i++) sum[0][i / 4][i % 4] = made[i] = 0.0f;
#if LONG_BLOCKS
  if (start < steps) fetch_block(rows, stages, start / BLOCK_STRETCHES, 0, 1);
#else
  for (int it = start; it < MIN(steps, start + AHEAD); it++) {
    fetch_weights(rows, stages + it % STAGES * STAGE_NBYTES, it);
  }
#endif
#if CONSTANT_W
  EARLY_WAIT();
  EARLY_LET_GO();
#endif
  for (int it = start; it < start + AHEAD; it++) {
    if (it < steps) fetch_rows(rows, stages + it % STAGES * STAGE_NBYTES, it);
    COPIES_CLOSE();
  }
  float scale = LANE < rows.count ? READ_F32(rows.x + so[LANE]) : 1.0f;
  for (int it = start; it < steps; it++) {
    COPIES_AWAIT(AHEAD - 1);
    PRODUCTS_SEE();
    BARRIER(); /* the stretch is there for all, and all are done with the one before the last */
    int next = it + AHEAD;
    LOCAL_PTR u8 *to = stages + next % STAGES * STAGE_NBYTES;
    LOCAL_PTR const u8 *xs = stages + it % STAGES * STAGE_NBYTES;
#if LONG_BLOCKS
    int block = it / BLOCK_STRETCHES, share = it % BLOCK_STRETCHES, piece = share * KB;
    LOCAL_PTR const u8 *row = stages + STAGES * STAGE_NBYTES + (block % 2 * BN + n) * W_PITCH;
    i64 ahead = (i64)block * BLOCK_NBYTES;
#else
    LOCAL_PTR const u8 *row = xs + X_NBYTES + n * W_PITCH;
    i64 ahead = (i64)it * KB * UNIT;
    const int piece = 0;
#endif
    GLOBAL const u8 *from = rows.w + n * rows.step + ahead;
    /* Rows begin at multiples of 16 bytes, blocks anywhere behind. */
    const int at[2] = {(int)((u64)from & 15), (int)((u64)(from + 8 * rows.step) & 15)};
    UNROLL for (int j = 0; j < KB; j++) {
      const int now = j % 2;
      const int begins = j == 0 && piece == 0;
#if BM > 64
      PRODUCTS_AWAIT(1); /* those of the piece before the last, whose registers are written next */
#endif
      float of_next[2];
      UNROLL for (int r = 0; r < 2; r++) {
        LOCAL_PTR const u8 *of_row = row + 8 * r * W_PITCH;
        u32 pairs[4];
#if LONG_BLOCKS
        if (begins) block_power(up[r], of_row + at[r], t);
        block_fragment(pairs, of_row, at[r], piece + j, t, up[r][0]);
        of_next[r] = up[r][1];
#else
        if (begins) stretch_scale(up[r], of_row, at[r]);
        fragment(pairs, of_row, at[r], j, t);
        float ratio = scale_of(of_row, at[r], j, 0) * up[r][0] * NUMBERS;
        u32 twice = PAIR_OF(ratio, ratio);
        UNROLL for (int i = 0; i < 4; i++) pairs[i] = MULTIPLY_PAIRS(pairs[i], twice);
        of_next[r] = up[r][1];
#endif
        UNROLL for (int i = 0; i < 4; i++) a[now][i / 2][i % 2 * 2 + r] = pairs[i];
      }
      if (begins || BM == 64) PRODUCTS_AWAIT(0);
      if (begins) {
        UNROLL for (int i = 0; i < TT * 4; i++) HELD(made[i]);
        UNROLL for (int i = 0; i < TT; i++) add_scaled(sum[0][i], made + 4 * i, of_unit[0], of_unit[1]);
        of_unit[0] = of_next[0], of_unit[1] = of_next[1];
      }
      UNROLL for (int i = 0; i < TT * 4; i++) HELD(made[i]);
      PRODUCTS_OPEN();
      UNROLL for (int half = 0; half < 2; half++) {
        UNROLL for (int i = 0; i < BM / 64; i++) {
          MULTIPLY_GROUP(made + 32 * i, a[now][half],
                         xs + j / 2 * (BM * 128) + i * (64 * 128) + j % 2 * 64 + half * 32, half || !begins);
        }
      }
      PRODUCTS_CLOSE();
      /* What is copied next is requested while tensor cores work. */
      if (j == 0 && next < steps) fetch_rows(rows, to, next);
#if LONG_BLOCKS
      if (j == 1 && share < SHARES && (block + 1) * BLOCK_STRETCHES < steps)
        fetch_block(rows, stages, block + 1, share, SHARES);
#else
      if (j == 1 && next < steps) fetch_weights(rows, to, next);
#endif
    }
    COPIES_CLOSE();
  }
  PRODUCTS_AWAIT(0);
  UNROLL for (int i = 0; i < TT * 4; i++) HELD(made[i]);
  UNROLL for (int i = 0; i < TT; i++) add_scaled(sum[0][i], made + 4 * i, of_unit[0], of_unit[1]);
  if (LANE < rows.count) scales[LANE] = scale;
  store_sums<TT>(rows, memory, y, yo, scales, sum);
}
#endif

/* x: planes of halves, rows `pitch` bytes apart, padded with zeros to 32 elements, and `scale_off` bytes from
 * there a float for each row. ROUTED: w (1, E, n, k), y (1, T, U, n), x of T * own rows; groups (n / BN,
 * TILES_MAX); else w (1, 1, n, k), y of any rows; groups (n / BN, m / BM), or (SPLITS, n / BN, m / BM). */
#define TILES_OF(tw) (((tw).n[2] + BN - 1) / BN)
#define FIRST_TILE(expert, begin) ((expert) + (begin) / BM) /* as in matmul.cl */
extern "C" __global__ void __launch_bounds__(LANES, RESIDENT)
tile_product(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, i64 x_off, i64 scale_off, i64 plane, int pitch, int own,
             GLOBAL u8 *y, Tens ty, GLOBAL const i32 *route
#if WEIGHTS > 1
             , GLOBAL const u8 *w1, Tens tw1, GLOBAL u8 *y1, Tens ty1
#endif
#if WEIGHTS > 2
             , GLOBAL const u8 *w2, Tens tw2, GLOBAL u8 *y2, Tens ty2
#endif
) {
  LOCAL_BYTES(stages);
  LOCAL i64 xo[BM];
  LOCAL i64 yo[BM];
  LOCAL i64 so[BM];
  LOCAL float scales[BM];
#if !CONSTANT_W
  EARLY_WAIT();
  EARLY_LET_GO();
#endif
  int tile = COLUMN_TILE;
#if WEIGHTS > 1
  if (tile >= TILES_OF(tw)) {
    tile -= TILES_OF(tw);
    w = w1, tw = tw1, y = y1, ty = ty1;
#if WEIGHTS > 2
    if (tile >= TILES_OF(tw1)) {
      tile -= TILES_OF(tw1);
      w = w2, tw = tw2, y = y2, ty = ty2;
    }
#endif
  }
#endif
  int n0 = tile * BN, columns = MIN(BN, tw.n[2] - n0);
#if ROUTED
  int experts = tw.n[1], used = ty.n[2];
  GLOBAL const i32 *mine = route + 3 * GROUP(1);
  GLOBAL const i32 *listed = route + 3 * FIRST_TILE(experts + 1, ty.n[1] * used);
  int expert = mine[0], begin = mine[1], count = mine[2];
#else
  int expert = 0, begin = ROW_TILE * BM, count = MIN(BM, ty.n[0] * ty.n[1] * ty.n[2] - begin);
#endif
  if (count <= 0) return;
  for (int i = LANE; i < count; i += LANES) {
#if ROUTED
    int token = listed[begin + i] / used, u = listed[begin + i] % used, row = token * own + (own > 1 ? u : 0);
    yo[i] = ty.off + token * ty.s[1] + u * ty.s[2] + (i64)n0 * 4;
#else
    int row = begin + i;
    yo[i] = row_offset(ty, row) + (i64)n0 * 4;
#endif
    xo[i] = x_off + (i64)row * pitch;
    so[i] = x_off + scale_off + (i64)row * 4;
  }
  BARRIER();
#if ROUTED
  if (expert == experts) { /* rows whose id is out of range */
    for (int i = LANE; i < count * columns; i += LANES) F32_AT(y + yo[i / columns] + i % columns * 4) = 0.0f;
    return;
  }
#endif
  Rows rows = {x, plane, xo, w + tw.off + expert * tw.s[1] + n0 * tw.s[2], tw.s[2], count, columns, tw.n[3]};
#if GROUP_MMA
  product_of_groups(rows, stages, y, yo, so, scales);
#else
  if (count <= 16)
    product_of<2>(rows, stages, y, yo, so, scales);
#if BM > 16
  else if (count <= 32)
    product_of<4>(rows, stages, y, yo, so, scales);
#endif
#if BM > 32
  else if (count <= 48)
    product_of<6>(rows, stages, y, yo, so, scales);
  else
    product_of<8>(rows, stages, y, yo, so, scales);
#endif
#endif
}
