/* y[m, n] = sum_k x[m, k] w[n, k] for many rows m, in blocks.
 *
 * A group computes BM rows of x against BN = LX * NR rows of w. For each stretch of BK elements
 * along k it unpacks its part of w once into a local tile; then each lane multiplies MR rows of x
 * with NR rows of the tile. Where a lane is a whole group (processors), it reads x from the cache,
 * sums vectors along k in registers, and sweeps over BM rows, MR at a time, with y carrying the sums
 * from stretch to stretch. On GPUs the rows of x are copied to a second tile.
 *
 * The host defines W_ALIGNED and X_ALIGNED where rows of w, of a plain type, and of x begin at
 * multiples of 16 bytes.
 *
 * The rows of x and y are listed in local arrays, so that the same code serves mul_mat_id, where
 * the rows that go to one expert are scattered. Rows of x lie along k without gaps, those of y
 * along n.
 */
#define BN (LX * NR)
#define LY (LANES / LX)
#define ONE_SWEEP (BM == LY * MR)
#define PITCH (BK + VW) /* rows of the tile apart in the sets of a cache and in memory banks */
#if LANES > 1
#define TILES(name) LOCAL f4 name##4_[PITCH * (BN + BM) / 4]; LOCAL_PTR float *name = (LOCAL_PTR float *)name##4_
#else
#define TILES(name) LOCAL float name[PITCH * BN]
#endif

/* Unpack w[0 .. rows-1, k0 .. k0+nk-1] to tile[n][k]. What lies beyond is undefined or zero; the sums
 * that it goes into are not stored. */
FN void unpack_tile(LOCAL_PTR float *tile, GLOBAL const u8 *w, i64 sn, i64 sk, int rows, int k0, int nk) {
#if !W_NBYTES
  for (int i = LANE; i < nk / 32 * BN; i += LANES) {
    int c = i / (nk / 32), k = i % (nk / 32) * 32;
    if (c < rows) wunpack(w + c * sn, k0 + k, tile + c * PITCH + k);
  }
#else
#if W_ALIGNED && LANES > 1
  for (int i = LANE; i < BN * BK / ELEMS_PER_CHUNK; i += LANES) {
    int c = i / (BK / ELEMS_PER_CHUNK), k = i % (BK / ELEMS_PER_CHUNK) * ELEMS_PER_CHUNK;
    if (c >= rows || k >= nk) continue;
    float several[ELEMS_PER_CHUNK];
    unpack(several, LOAD16(w + c * sn + (i64)(k0 + k) * W_NBYTES));
    UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) tile[c * PITCH + k + j] = several[j];
  }
#else
  int vectors = (nk + VW - 1) / VW;
  if (sk != W_NBYTES) { /* transposed, or strided otherwise: neighbours along n are closer */
    for (int i = LANE; i < vectors * VW * BN; i += LANES) {
      int c = i % BN, k = i / BN;
      tile[c * PITCH + k] = c < rows && k < nk ? WITEM(w + c * sn + (i64)(k0 + k) * sk, 0) : 0.0f;
    }
    return;
  }
  for (int i = LANE; i < vectors * BN; i += LANES) {
    int c = i / vectors, k = i % vectors * VW;
    GLOBAL const u8 *row = w + c * sn;
    LOCAL_PTR float *to = tile + c * PITCH + k;
    if (c < rows && k + VW <= nk) {
      VSTORE_LOCAL(WLOAD(row, k0 + k), to);
    } else {
      for (int j = 0; j < VW; j++) to[j] = c < rows && k + j < nk ? WITEM(row, k0 + k + j) : 0.0f;
    }
  }
#endif
#endif
}

#if LANES > 1
/* Copy x[.., k0 .. k0+nk-1] of the listed rows; beyond there are zeros up to a whole vector. */
FN void copy_rows(LOCAL_PTR float *tile, GLOBAL const u8 *x, LOCAL_PTR const i64 *xo, int count, int k0,
                  int nk) {
  for (int i = LANE; i < BM * BK / VW; i += LANES) {
    int r = i / (BK / VW), k = i % (BK / VW) * VW;
    if (r >= count || k >= nk) continue;
    GLOBAL const float *row = (GLOBAL const float *)(x + xo[r]) + k0 + k;
    LOCAL_PTR float *to = tile + r * PITCH + k;
#if X_ALIGNED
    if (k + VW <= nk) {
      *(LOCAL_PTR f4 *)to = *(GLOBAL const f4 *)row;
      continue;
    }
#endif
    for (int j = 0; j < VW; j++) to[j] = k + j < nk ? row[j] : 0.0f;
  }
}

FN void block_product(GLOBAL const u8 *w, i64 sn, i64 sk, int columns, GLOBAL const u8 *x,
                      LOCAL_PTR const i64 *xo, GLOBAL u8 *y, LOCAL_PTR const i64 *yo, int count,
                      int nk, LOCAL_PTR float *tile) {
  LOCAL_PTR float *rows = tile + PITCH * BN;
  LOCAL_PTR const float *wt = tile + LANE % LX * PITCH, *xt = rows + LANE / LX * PITCH;
  float acc[MR * NR];
  UNROLL for (int i = 0; i < MR * NR; i++) acc[i] = 0.0f;
  for (int k0 = 0; k0 < nk; k0 += BK) {
    int stretch = MIN(BK, nk - k0);
    unpack_tile(tile, w, sn, sk, columns, k0, stretch);
    copy_rows(rows, x, xo, count, k0, stretch);
    BARRIER();
    for (int k = 0; k < stretch; k += 4) {
      f4 a[MR];
      UNROLL for (int r = 0; r < MR; r++) a[r] = *(LOCAL_PTR const f4 *)(xt + r * LY * PITCH + k);
      UNROLL for (int c = 0; c < NR; c++) {
        f4 b = *(LOCAL_PTR const f4 *)(wt + c * LX * PITCH + k);
        UNROLL for (int r = 0; r < MR; r++) {
          float sum = FMA(a[r].x, b.x, acc[r * NR + c]);
          sum = FMA(a[r].y, b.y, sum);
          sum = FMA(a[r].z, b.z, sum);
          acc[r * NR + c] = FMA(a[r].w, b.w, sum);
        }
      }
    }
    BARRIER();
  }
  UNROLL for (int r = 0; r < MR; r++) {
    int m = LANE / LX + r * LY;
    if (m >= count) continue;
    UNROLL for (int c = 0; c < NR; c++) {
      int n = LANE % LX + c * LX;
      if (n < columns) ((GLOBAL float *)(y + yo[m]))[n] = acc[r * NR + c];
    }
  }
}
#else
FN void block_product(GLOBAL const u8 *w, i64 sn, i64 sk, int columns, GLOBAL const u8 *x,
                      LOCAL_PTR const i64 *xo, GLOBAL u8 *y, LOCAL_PTR const i64 *yo, int count,
                      int nk, LOCAL_PTR float *tile) {
  int c0 = LANE % LX * NR;
  LOCAL_PTR const float *wt = tile + c0 * PITCH;
  vf acc[MR * NR];
  for (int k0 = 0; k0 < nk || k0 == 0; k0 += BK) {
    int stretch = MIN(BK, nk - k0);
    unpack_tile(tile, w, sn, sk, columns, k0, stretch);
    BARRIER();
    for (int m0 = LANE / LX * MR; m0 < count; m0 += LY * MR) {
      GLOBAL const float *xr[MR];
      int k = 0;
      UNROLL for (int r = 0; r < MR; r++)
        xr[r] = (GLOBAL const float *)(x + xo[MIN(m0 + r, count - 1)]) + k0;
      if (!ONE_SWEEP || k0 == 0) {
        UNROLL for (int i = 0; i < MR * NR; i++) acc[i] = VSPLAT(0.0f);
      }
      for (; k + VW <= stretch; k += VW) {
        vf xv[MR];
        UNROLL for (int r = 0; r < MR; r++) xv[r] = VLOAD(xr[r] + k);
        UNROLL for (int c = 0; c < NR; c++) {
          vf wv = VLOAD_LOCAL(wt + c * PITCH + k);
          UNROLL for (int r = 0; r < MR; r++) acc[c * MR + r] += xv[r] * wv;
        }
      }
      if (ONE_SWEEP && k0 + BK < nk) continue;
      UNROLL for (int c = 0; c < NR; c++) {
        UNROLL for (int r = 0; r < MR; r++) {
          float sum = VSUM(acc[c * MR + r]);
          for (int j = k; j < stretch; j++) sum += xr[r][j] * wt[c * PITCH + j];
          if (m0 + r < count && c0 + c < columns) {
            GLOBAL float *to = (GLOBAL float *)(y + yo[m0 + r]) + c0 + c;
            *to = !ONE_SWEEP && k0 > 0 ? *to + sum : sum;
          }
        }
      }
    }
    BARRIER();
  }
}
#endif

/* Groups: (n / BN, m / BM, batches). */
KERNEL(matmul)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty) {
  TILES(tile);
  LOCAL i64 xo[BM];
  LOCAL i64 yo[BM];
  int n0 = GROUP(0) * BN, m0 = GROUP(1) * BM, b = GROUP(2);
  int b0 = b / tx.n[1], b1 = b % tx.n[1], count = MIN(BM, tx.n[2] - m0);
  i64 wo = tw.off + b0 / (tx.n[0] / tw.n[0]) * tw.s[0] + b1 / (tx.n[1] / tw.n[1]) * tw.s[1];
  for (int i = LANE; i < count; i += LANES) {
    xo[i] = tx.off + b0 * tx.s[0] + b1 * tx.s[1] + (m0 + i) * tx.s[2];
    yo[i] = ty.off + b0 * ty.s[0] + b1 * ty.s[1] + (m0 + i) * ty.s[2] + n0 * 4;
  }
  BARRIER();
  block_product(w + wo + n0 * tw.s[2], tw.s[2], tw.s[3], MIN(BN, tw.n[2] - n0), x, xo, y, yo, count,
                tx.n[3], tile);
}

/* For mul_mat_id: which rows go to which expert. `route` gets for each tile its expert, where its rows
 * begin, and how many there are, at most BM; then the rows t * U + u, sorted by expert and by number.
 * Rows whose expert is elsewhere go to one more. Groups: (experts + 1), each for one expert,
 * which counts the rows that experts before it have and so knows where its own begin; a lane looks
 * after a stretch of the rows. The tiles of an expert begin at FIRST_TILE, which leaves room for as many
 * as those before it can have; what is left over has no rows. */
#define FIRST_TILE(expert, begin) ((expert) + (begin) / BM)
#define TILES_MAX(experts, pairs) FIRST_TILE((experts) + 1, pairs)
#define EACH_ROW(body)                                                             \
  for (int p = from, t = from / ti.n[3], u = from % ti.n[3]; p < to; p++) {        \
    int here = expert_of(ids, ti, t, u, experts, fault, code);                     \
    int e = here < 0 ? experts : here;                                             \
    body;                                                                          \
    if (++u == ti.n[3]) u = 0, t++;                                                \
  }
KERNEL(list_rows)(GLOBAL const u8 *ids, Tens ti, GLOBAL i32 *route, int experts, GLOBAL i32 *fault,
                  int code) {
  LOCAL int before[LANES];
  LOCAL int mine[LANES];
  int expert = GROUP(0), pairs = ti.n[2] * ti.n[3], share = (pairs + LANES - 1) / LANES;
  int from = MIN(pairs, LANE * share), to = MIN(pairs, from + share), less = 0, equal = 0;
  EACH_ROW({
    less += e < expert;
    equal += e == expert;
  })
  before[LANE] = less;
  mine[LANE] = equal;
  BARRIER();
  for (int step = 1; step < LANES; step *= 2) { /* sums up to each lane */
    int a = LANE >= step ? before[LANE - step] : 0, b = LANE >= step ? mine[LANE - step] : 0;
    BARRIER();
    before[LANE] += a;
    mine[LANE] += b;
    BARRIER();
  }
  int begin = before[LANES - 1], count = mine[LANES - 1];
  int first = FIRST_TILE(expert, begin), end = FIRST_TILE(expert + 1, begin + count);
  for (int i = first + LANE; i < end; i += LANES) {
    int done = (i - first) * BM;
    route[3 * i] = expert;
    route[3 * i + 1] = begin + done;
    route[3 * i + 2] = MAX(0, MIN(BM, count - done));
  }
  GLOBAL i32 *rows = route + 3 * TILES_MAX(experts, pairs) + begin + mine[LANE] - equal;
  EACH_ROW({
    if (e == expert) *rows++ = p;
  })
}

/* w (1, E, n, k), x (1, T, U or 1, k), y (1, T, U, n). Groups: (n / BN, TILES_MAX); those of tiles
 * without rows do nothing. They do not return, so that all lanes meet at every barrier. */
KERNEL(matmul_id)(GLOBAL const u8 *w, Tens tw, GLOBAL const u8 *x, Tens tx, GLOBAL u8 *y, Tens ty,
                  GLOBAL const i32 *route) {
  TILES(tile);
  LOCAL i64 xo[BM];
  LOCAL i64 yo[BM];
  int experts = tw.n[1], used = ty.n[2], n0 = GROUP(0) * BN, columns = MIN(BN, tw.n[2] - n0);
  GLOBAL const i32 *mine = route + 3 * GROUP(1);
  GLOBAL const i32 *rows = route + 3 * TILES_MAX(experts, ty.n[1] * used);
  int expert = mine[0], begin = mine[1], count = mine[2];
  for (int i = LANE; i < count; i += LANES) {
    int t = rows[begin + i] / used, u = rows[begin + i] % used;
    xo[i] = tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2];
    yo[i] = ty.off + t * ty.s[1] + u * ty.s[2] + n0 * 4;
    for (int c = 0; expert == experts && c < columns; c++) F32_AT(y + yo[i] + c * 4) = 0.0f;
  }
  BARRIER();
  count = expert < experts ? count : 0;
  block_product(w + tw.off + (count ? expert : 0) * tw.s[1] + n0 * tw.s[2], tw.s[2], tw.s[3], columns, x,
                xo, y, yo, count, count ? tx.n[3] : 0, tile);
}
