/* Adds up what the shares of flash_attention have of each row: (splits, T * H, ACROSS + 2), with the largest logit and
 * the sum at the end. With HALVES 1 besides the rows as bf16, for the product that follows, with 2 as f16 with a scale for
 * each token, of which a group then has all heads.
 *
 * A warp takes a row (a head of a token), a lane of it pairs of elements, of AT_ONCE shares at a time; where rows are few,
 * WARPS_OF_ROW warps take some of the shares each. Groups: LANES / 32 / WARPS_OF_ROW rows each. */
#define LOWEST FLOAT_OF_BITS(0xff7fffffu)
#define SINKS 2
#define MAX_SPLITS 64
#define PARTS ((ACROSS + 63) / 64)
#define ALL_LANES 0xffffffffu
#if HALVES == 2
#define HALF_PAIR(low, high) f16_pair((low), (high))
#else
#define HALF_PAIR(low, high) bf16_pair((low), (high))
#endif

#undef KERNEL_BOUNDS
#define KERNEL_BOUNDS __launch_bounds__(LANES)
KERNEL(flash_join)(GLOBAL const u8 *parts, GLOBAL const u8 *sinks, Tens ts, GLOBAL u8 *y, Tens ty, int has, int splits,
                   GLOBAL u8 *halves) {
  int heads = ty.n[2], rows = ty.n[1] * heads, lane = LANE % 32;
  int row = GROUP(0) * (LANES / 32 / WARPS_OF_ROW) + LANE / 32 / WARPS_OF_ROW;
  if (row >= rows) return; /* with all its warps, for which nobody waits */
  int t = row / heads, h = row % heads;
  i64 step = (i64)rows * (ACROSS + 2);
  const float *mine = (const float *)parts + (i64)row * (ACROSS + 2);
  /* Lane s has the largest logit and the sum of shares s and s + 32. */
  float2 end[MAX_SPLITS / 32];
  float sink = (has & SINKS) ? MAX(READ_F32(sinks + ts.off + h * ts.s[3]), LOWEST) : LOWEST, highest = sink;
  UNROLL for (int k = 0; k < MAX_SPLITS / 32; k++) {
    int s = lane + 32 * k;
    end[k] = make_float2(LOWEST, 0.0f);
    if (s < splits) end[k] = *(const float2 *)(mine + s * step + ACROSS);
    highest = MAX(highest, end[k].x);
  }
  UNROLL for (int lanes = 1; lanes < 32; lanes *= 2) {
    float other = __shfl_xor_sync(ALL_LANES, highest, lanes);
    highest = MAX(highest, other);
  }
  float all = 0.0f;
  UNROLL for (int k = 0; k < MAX_SPLITS / 32; k++) {
    end[k].x = EXP(end[k].x - highest);
    all += end[k].x * end[k].y;
  }
  UNROLL for (int lanes = 1; lanes < 32; lanes *= 2) all += __shfl_xor_sync(ALL_LANES, all, lanes);
  if ((has & SINKS) && sink > LOWEST) all += EXP(sink - highest);
  float2 x[PARTS];
  UNROLL for (int k = 0; k < PARTS; k++) x[k] = make_float2(0.0f, 0.0f);
  int each = (splits + WARPS_OF_ROW - 1) / WARPS_OF_ROW, begin = LANE / 32 % WARPS_OF_ROW * each;
  int behind = MIN(splits, begin + each);
  for (int first = begin; first < behind; first += AT_ONCE) {
    float2 some[AT_ONCE][PARTS]; /* all on their way before the first one is waited for */
    UNROLL for (int i = 0; i < AT_ONCE * PARTS; i++) {
      int s = first + i / PARTS, e = 64 * (i % PARTS) + 2 * lane;
      some[i / PARTS][i % PARTS] = make_float2(0.0f, 0.0f);
      if (s < behind && e < ACROSS) some[i / PARTS][i % PARTS] = *(const float2 *)(mine + s * step + e);
    }
    UNROLL for (int i = 0; i < AT_ONCE; i++) {
      float by = __shfl_sync(ALL_LANES, end[0].x, (first + i) % 32, 32);
      if (first + i >= 32) by = __shfl_sync(ALL_LANES, end[1].x, (first + i) % 32, 32);
      UNROLL for (int k = 0; k < PARTS; k++) x[k].x += some[i][k].x * by, x[k].y += some[i][k].y * by;
    }
  }
#if WARPS_OF_ROW > 1
  /* One row in a group. */
  LOCAL float2 partial[WARPS_OF_ROW][PARTS][32];
  UNROLL for (int k = 0; k < PARTS; k++) partial[LANE / 32][k][lane] = x[k];
  BARRIER();
  if (LANE >= 32) return;
  UNROLL for (int k = 0; k < PARTS * (WARPS_OF_ROW - 1); k++) {
    float2 more = partial[1 + k / PARTS][k % PARTS][lane];
    x[k % PARTS].x += more.x, x[k % PARTS].y += more.y;
  }
#endif
  u8 *place = y + ty.off + t * ty.s[1] + h * ty.s[2];
  UNROLL for (int k = 0; k < PARTS; k++) {
    int e = 64 * k + 2 * lane;
    x[k] = make_float2(all == 0.0f ? 0.0f : x[k].x / all, all == 0.0f ? 0.0f : x[k].y / all);
    if (e < ACROSS) *(float2 *)(place + 4 * e) = x[k];
  }
#if HALVES
  float up = 1.0f;
#if HALVES == 2
  LOCAL float tops[32];
  float top = 0.0f;
  UNROLL for (int k = 0; k < PARTS; k++) top = MAX(top, MAX(size_of(x[k].x), size_of(x[k].y)));
  up = scale_row(halves, t, ty.n[1], heads * ACROSS, top, tops);
#endif
  UNROLL for (int k = 0; k < PARTS; k++) {
    int e = 64 * k + 2 * lane;
    if (e < ACROSS) *(u32 *)(halves + 2 * ((i64)row * ACROSS + e)) = HALF_PAIR(x[k].x * up, x[k].y * up);
  }
#endif
}
