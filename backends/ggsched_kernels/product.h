/* What matrix-vector kernels for warps compute: y[m, n] = sum_k x[m, k] w[n, k] for few m. With WEIGHTS 2 or 3 the same
 * rows of x are multiplied with further weights, which have results of their own. */
#ifndef WEIGHTS
#define WEIGHTS 1
#endif
typedef struct {
  GLOBAL const u8 *w; /* row 0 */
  i64 sw;             /* bytes from row to row */
  GLOBAL const u8 *x;
  i64 sx;
  GLOBAL u8 *y;
  i64 sy_column, sy_row; /* from row to row of x, and of w */
  int rows, columns, nk; /* rows of w, rows of x (at most COLS), extent of the sum */
  int group, groups;     /* of those that share the rows of w; a kernel sets them */
#if MERGED
  GridBarrier_ *grid_barrier;
#endif
#if ADDED
  GLOBAL const u8 *z; /* what is added, as far apart as y */
  i64 sz_column, sz_row;
#endif
#if NORMED
  GLOBAL const u8 *nw; /* elements that norms of x are multiplied with */
  GLOBAL u8 *ny;       /* where that goes besides */
  i64 sny;
  float eps;
#endif
#if WEIGHTS > 1
  GLOBAL const u8 *w1;
  GLOBAL u8 *y1;
  i64 sw1, sy1_column, sy1_row;
  int rows1;
#if ADDED
  GLOBAL const u8 *z1, *z2;
#endif
#endif
#if WEIGHTS > 2
  GLOBAL const u8 *w2;
  GLOBAL u8 *y2;
  i64 sw2, sy2_column, sy2_row;
  int rows2;
#endif
} Product;

/* That with one of the weights. */
FN Product part_of(const Product p, int part) {
  Product q = p;
#if WEIGHTS > 1
#if ADDED
  q.z = part == 2 ? p.z2 : part == 1 ? p.z1 : p.z;
#endif
  if (part == 1) q.w = p.w1, q.sw = p.sw1, q.y = p.y1, q.sy_column = p.sy1_column, q.sy_row = p.sy1_row, q.rows = p.rows1;
#endif
#if WEIGHTS > 2
  if (part == 2) q.w = p.w2, q.sw = p.sw2, q.y = p.y2, q.sy_column = p.sy2_column, q.sy_row = p.sy2_row, q.rows = p.rows2;
#endif
  return q;
}
/* The first stretch of a part that a group has, where `before` stand in front of the part. */
#define FIRST_OF_PART(p, before) (WEIGHTS == 1 ? (p).group : ((p).group + (p).groups - (before) % (p).groups) % (p).groups)

/* That of batch b of x (B, .., m, k) from row m0 on, with w (B / joined, .., n, k). `joined` batches of x that share
 * one of w count as rows of x if each has one row: heads of attention. */
FN Product batch_product(GLOBAL const u8 *w, const Tens tw, GLOBAL const u8 *x, const Tens tx, GLOBAL u8 *y,
                         const Tens ty, int batch, int m0, int joined) {
  int b = batch * joined, b0 = b / tx.n[1], b1 = b % tx.n[1];
  Product p;
  p.w = w + tw.off + b0 / (tx.n[0] / tw.n[0]) * tw.s[0] + b1 / (tx.n[1] / tw.n[1]) * tw.s[1];
  p.sw = tw.s[2];
  p.sx = joined > 1 ? tx.s[1] : tx.s[2];
  p.x = x + tx.off + b0 * tx.s[0] + b1 * tx.s[1] + m0 * p.sx;
  p.sy_column = joined > 1 ? ty.s[1] : ty.s[2], p.sy_row = ty.s[3];
  p.y = y + ty.off + b0 * ty.s[0] + b1 * ty.s[1] + m0 * p.sy_column;
  p.rows = tw.n[2], p.columns = MIN(COLS, (joined > 1 ? joined : tx.n[2]) - m0), p.nk = tx.n[3];
  p.group = 0, p.groups = 1;
  return p;
}

/* That of pair (t, u) of mul_mat_id, w[ids[t, u]] (1, E, n, k), x (1, T, U or 1, k), y (1, T, U, n); for an
 * expert that is elsewhere an empty sum, which is zeros. */
FN Product chosen_product(GLOBAL const u8 *w, const Tens tw, GLOBAL const u8 *x, const Tens tx,
                          GLOBAL const u8 *ids, const Tens ti, GLOBAL u8 *y, const Tens ty, int pair,
                          GLOBAL i32 *fault, int code) {
  int t = pair / ti.n[3], u = pair % ti.n[3];
  int expert = expert_of(ids, ti, t, u, tw.n[1], fault, code);
  Product p;
  p.w = w + tw.off + MAX(0, expert) * tw.s[1];
  p.sw = tw.s[2];
  p.sx = 0;
  p.x = x + tx.off + t * tx.s[1] + (tx.n[2] > 1 ? u : 0) * tx.s[2];
  p.sy_column = 0, p.sy_row = ty.s[3];
  p.y = y + ty.off + t * ty.s[1] + u * ty.s[2];
  p.rows = tw.n[2], p.columns = 1, p.nk = expert < 0 ? 0 : tx.n[3];
  p.group = 0, p.groups = 1;
  return p;
}
