/* Which experts a token gets, and how much of each: what top_k, get_rows, soft_max, sum_rows and div would do one
 * after the other for a few rows of logits. Behind the text of sort.cl, whose order this is.
 *
 * One group does all rows; SPAN lanes, whole warps, share a row and each has one of its numbers. So every number is
 * read before the first result is written, and results may lie where the planner puts those of the nodes: what is
 * dead by then is written over in the order of the nodes, for a barrier stands between what nodes of before
 * the choice write and those behind it. (Those behind it write the same place by the same lane, or apart.)
 *
 * x (1, 1, T, E); ids, picked and y (1, 1, T, COUNT); probs as x, total (1, 1, T, 1). T <= LANES / SPAN, E <= SPAN,
 * COUNT <= 32.
 */
#define TOKENS (LANES / SPAN)
#define TOKEN (LANE / SPAN)
#define NUMBER (LANE % SPAN)
#define PLACE_OF(p, t, i) (p + t.off + TOKEN * t.s[2] + (i) * t.s[3])

/* The sum, or the maximum, over the lanes of a row. */
#define OVER_ROW_(name, COMBINED)                                                          \
  FN float name(float a, LOCAL_PTR float *scratch) {                                       \
    UNROLL for (int step = 16; step > 0; step /= 2) {                                      \
      float b = __shfl_xor_sync(0xffffffffu, a, step);                                     \
      a = COMBINED;                                                                        \
    }                                                                                      \
    if (LANE % 32 == 0) scratch[LANE / 32] = a;                                            \
    BARRIER();                                                                             \
    a = scratch[TOKEN * (SPAN / 32)];                                                      \
    UNROLL for (int w = 1; w < SPAN / 32; w++) {                                           \
      float b = scratch[TOKEN * (SPAN / 32) + w];                                          \
      a = COMBINED;                                                                        \
    }                                                                                      \
    return a;                                                                              \
  }
OVER_ROW_(row_sum_, a + b)
OVER_ROW_(row_top_, MAX(a, b))

#define LEFT (SPAN / 32 * COUNT) /* numbers of a row of which a choice may be: COUNT of each warp */

/* How many of `count` keys come before one, of which `own` lies at place i if it is among them. Keys are larger than
 * the smallest integer. */
FN int before_(LOCAL_PTR const i32 *keys, int count, i32 own, int i) {
  const uint4 *fours = (const uint4 *)keys;
  int place = 0;
  _Pragma("unroll 8") for (int j = 0; j < count; j += 4) {
    uint4 four = fours[j / 4];
    place += (i32)four.x <= own - (j >= i);
    place += (i32)four.y <= own - (j + 1 >= i);
    place += (i32)four.z <= own - (j + 2 >= i);
    place += (i32)four.w <= own - (j + 3 >= i);
  }
  return place;
}

/* How many numbers of its row come before the lane's own, by value and then by index; of long rows it is COUNT or more
 * if there are that many. All lanes take part; numbers behind the last of a row count as NaN, which comes last. */
FN int place_in_row_(float x, LOCAL_PTR i32 *keys) {
  i32 key = sort_key(x, 1);
  if (LEFT % 4 || LEFT > SPAN / 2) {
    keys[LANE] = key;
    BARRIER();
    return before_(keys + TOKEN * SPAN, SPAN, key, NUMBER);
  }
  /* Of a warp COUNT numbers are left, in their order; what has COUNT before it there is not chosen. */
  int place = 0, own = LANE % 32, at = NUMBER / 32 * COUNT;
  UNROLL for (int lane = 0; lane < 32; lane++) place += __shfl_sync(0xffffffffu, key, lane, 32) <= key - (lane >= own);
  if (place < COUNT) keys[TOKEN * LEFT + at + place] = key;
  BARRIER();
  return place < COUNT ? before_(keys + TOKEN * LEFT, LEFT, key, at + place) : COUNT;
}

/* Choose by x, the lane's own number, and write ids. Afterwards chosen[TOKEN * COUNT + r] is choice r. */
FN void choose_(float x, int is_there, GLOBAL u8 *ids, Tens ti, LOCAL_PTR i32 *keys, LOCAL_PTR float *chosen) {
  int place = place_in_row_(x, keys);
  if (is_there && place < COUNT) {
    chosen[TOKEN * COUNT + place] = x;
    *(GLOBAL i32 *)PLACE_OF(ids, ti, place) = NUMBER;
  }
  BARRIER();
}

#define NAN_ FLOAT_OF_BITS(0x7fffffffu)
#define LOWEST_ FLOAT_OF_BITS(0xff800000u)

/* Choose by logits; softmax over those that are chosen. */
KERNEL(route_chosen)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *ids, Tens ti, GLOBAL u8 *picked, Tens tp, GLOBAL u8 *y,
                     Tens ty, float scale) {
  LOCAL __align__(16) i32 keys[LANES];
  LOCAL float chosen[TOKENS * COUNT];
  int is_there = TOKEN < tx.n[2] && NUMBER < tx.n[3];
  choose_(is_there ? READ_F32(PLACE_OF(x, tx, NUMBER)) : NAN_, is_there, ids, ti, keys, chosen);
  if (TOKEN >= tx.n[2] || NUMBER >= COUNT) return;
  LOCAL_PTR const float *row = chosen + TOKEN * COUNT;
  float top = LOWEST_, sum = 0.0f, own = row[NUMBER];
  UNROLL for (int r = 0; r < COUNT; r++) top = MAX(top, row[r] * scale);
  UNROLL for (int r = 0; r < COUNT; r++) sum += EXP(row[r] * scale - top);
  F32_AT(PLACE_OF(picked, tp, NUMBER)) = own;
  F32_AT(PLACE_OF(y, ty, NUMBER)) = EXP(own * scale - top) * (1.0f / sum);
}

/* Softmax over all; choose by that, and divide those that are chosen by their sum. */
KERNEL(route_all)(GLOBAL const u8 *x, Tens tx, GLOBAL u8 *probs, Tens tr, GLOBAL u8 *ids, Tens ti, GLOBAL u8 *picked,
                  Tens tp, GLOBAL u8 *total, Tens tt, GLOBAL u8 *y, Tens ty, float scale) {
  LOCAL __align__(16) i32 keys[LANES];
  LOCAL float chosen[TOKENS * COUNT];
  LOCAL float tops[LANES / 32];
  LOCAL float sums[LANES / 32];
  int is_there = TOKEN < tx.n[2] && NUMBER < tx.n[3];
  float logit = is_there ? READ_F32(PLACE_OF(x, tx, NUMBER)) * scale : LOWEST_;
  float e = EXP(logit - row_top_(logit, tops));
  float all = row_sum_(is_there ? e : 0.0f, sums), prob = NAN_;
  if (is_there) {
    prob = e * (1.0f / all);
    F32_AT(PLACE_OF(probs, tr, NUMBER)) = prob;
  }
  choose_(prob, is_there, ids, ti, keys, chosen);
  if (TOKEN >= tx.n[2] || NUMBER >= COUNT) return;
  LOCAL_PTR const float *row = chosen + TOKEN * COUNT;
  float sum = 0.0f, own = row[NUMBER];
  UNROLL for (int r = 0; r < COUNT; r++) sum += row[r];
  F32_AT(PLACE_OF(picked, tp, NUMBER)) = own;
  if (NUMBER == 0) F32_AT(PLACE_OF(total, tt, 0)) = sum;
  F32_AT(PLACE_OF(y, ty, NUMBER)) = own / sum;
}
