/* Attention on tensor cores: y = softmax(q k * scale + mask) v for keys and values of 16 bits, or of blocks of q8_0, which
 * are unpacked to f16 on their way to local memory. Behind warps.h.
 *
 * q (1, T, H, D) f32, k (1, N, G, D), v (1, N, G, E), mask (1, H, T, N), sinks (1, 1, 1, H), bounds (1, 1, T, 2),
 * y (1, T, H, E). `share` = H / G heads of queries meet one head of keys; their rows, of all tokens, are one matrix: row i
 * is head i % share of token i / share. A group has BM = WARPS * 16 * MT of these rows, a warp 16 * MT. D = WIDTH and
 * E = ACROSS are multiples of 16.
 *
 * Queries and shares are rounded to the type of the keys, or, with PLANES = 2, taken as sums of two such numbers. BN rows of keys and of values at a time are copied to local memory while
 * the rows before them are multiplied. A lane of a warp, 4 g + t, has of each 16 x 8 tile of logits columns 2 t and 2 t + 1 of
 * rows g and g + 8; that is also how it must have shares as the left side of the second product, so shares never leave
 * the registers. Each row keeps its largest logit, in units of log 2, and its sum so far.
 *
 * ALONG says that all warps of a group have the same BM = 16 * MT rows, and each a part of the BN rows of keys: where rows of
 * queries are so few that most warps would have none. In the end the warps add up in local memory.
 *
 * MASKED and CAPPED say whether there is a mask and a limit of the logits, SKIPS whether warps leave out what none of their
 * rows sees: tokens of several sequences see different rows.
 *
 * GROUP_MMA says that groups of four warps multiply, from compute capability 9.0 on: queries are in registers, keys and values
 * in local memory as tiles of 64 elements of each row (group_mma.h), of which those of the next step are on their way. D and E are
 * then multiples of 64, MT is 1, BN a multiple of 64, and products of shares are under way while the next logits are.
 *
 * Blocks of keys that no token of the group sees are skipped, and those that all of them see are not compared with bounds.
 * With `splits` > 1 groups along the last axis share the rows that are seen; what they have goes to `parts`, (splits, T * H,
 * E + 2), with the largest logit and the sum at the end, for flash_join. With HALVES 1 and no such groups rows are written as
 * bf16 besides, for the product that follows.
 */
#ifndef ASK_FOR
#define ASK_FOR(p) asm volatile("prefetch.global.L2 [%0];" ::"l"(p))
#endif
#define SINKS 2
#define BOUNDS 4
#define WARPS (LANES / WARP)
#if ALONG
#define BM (16 * MT)
#define FIRST_ROW 0
#define KEYS (BN / WARPS) /* of a warp in a step */
#define FIRST_KEY (WARP_INDEX * KEYS)
#else
#define BM (WARPS * 16 * MT)
#define FIRST_ROW (WARP_INDEX * 16 * MT)
#define KEYS BN
#define FIRST_KEY 0
#endif
#if GROUP_MMA
#define K_PITCH (2 * WIDTH)
#define V_PITCH (2 * ACROSS)
#define STAGES 3
#define PLACE_OF(row, c, pitch) ((c) / 8 * (BN * 128) + SWIZZLED(row, (c) % 8))
#define ALIGNMENT 1024
#else
#define K_PITCH (2 * WIDTH + 16) /* eight rows of a matrix lie in different banks */
#define V_PITCH (2 * ACROSS + 16)
#define STAGES 2
#define PLACE_OF(row, c, pitch) ((row) * (pitch) + 16 * (c))
#define PRODUCTS_SEE()
#endif
#define STAGE_NBYTES (BN * (K_PITCH + V_PITCH))
#define LOADS 8 /* of queries that a lane has under way */
/* Wait until the rows of step i are there for all, and all are done with those before them (GROUP_MMA: before the one before);
 * request those of the next step. */
#define ADVANCE(i)                                                                                               \
  do {                                                                                                           \
    COPIES_AWAIT(0);                                                                                             \
    PRODUCTS_SEE();                                                                                              \
    BARRIER();                                                                                                   \
    REQUEST((i) + 1);                                                                                            \
  } while (0)
#define REQUEST(i)                                                                                               \
  do {                                                                                                           \
    if ((i) < steps)                                                                                             \
      fetch(stages + (i) % STAGES * STAGE_NBYTES, keys, tk.s[1], values, tv.s[1], from + (i) * BN, n);           \
    COPIES_CLOSE();                                                                                              \
  } while (0)
#define ALL_LANES 0xffffffffu
#define HIDDEN FLOAT_OF_BITS(0xff800000u)
#define LOWEST FLOAT_OF_BITS(0xff7fffffu) /* finite: of shares that have seen nothing */
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* Four 8 x 8 matrices of halves: lane i says where row i % 8 of matrix i / 8 is; lane 4 g + t gets elements 2 t and 2 t + 1 of
 * row g of each, or, turned, of column g. */
FN void load_matrices_(u32 *to, const u8 *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((u32)__cvta_generic_to_shared(p))
               : "memory");
}
FN void load_turned_(u32 *to, const u8 *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((u32)__cvta_generic_to_shared(p))
               : "memory");
}
FN float exp2_(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#ifdef W_BF16
#define LOW_OF(pair) FLOAT_OF_BITS((pair) << 16)
#define HIGH_OF(pair) FLOAT_OF_BITS((pair)&0xffff0000u)
#else
#define LOW_OF(pair) FLOAT_OF_HALF((pair)&0xffffu)
#define HIGH_OF(pair) FLOAT_OF_HALF((pair) >> 16)
#endif
#define LOAD_MATRICES(to, p) load_matrices_((to), (p))
#define LOAD_TURNED(to, p) load_turned_((to), (p))
#define EXP2(x) exp2_(x)

FN int least_(int x) {
  UNROLL for (int lanes = 1; lanes < WARP; lanes *= 2) {
    int other = (int)__shfl_xor_sync(ALL_LANES, (u32)x, lanes);
    x = MIN(x, other);
  }
  return x;
}

#ifdef W_Q8_0
/* Eight elements of a row of blocks, a scale in f16 and 32 signed bytes each, which lie at even addresses. */
FN void take_eight(u8 *place, const u8 *row, int c) {
  const u16 *block = (const u16 *)(row + c / 4 * 34);
  float unit = FLOAT_OF_HALF(block[0]);
  u32 pairs[4];
  UNROLL for (int i = 0; i < 4; i++) {
    u32 both = block[1 + c % 4 * 4 + i];
    pairs[i] = PAIR_OF((float)(signed char)(both & 0xffu) * unit, (float)(signed char)(both >> 8) * unit);
  }
  *(u4 *)place = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
#define TAKE_EIGHT(place, row, c) take_eight((place), (row), (c))
#else
#define TAKE_EIGHT(place, row, c) COPY16((place), (row) + 16 * (c))
#endif

/* Request rows [n0, n0 + BN) of keys and values; those behind the last one are zeros, since 0 * NaN is NaN. */
FN void fetch(u8 *to, const u8 *k, i64 sk, const u8 *v, i64 sv, int n0, int n) {
  for (int i = LANE; i < BN * (WIDTH / 8); i += LANES) {
    int row = i / (WIDTH / 8), c = i % (WIDTH / 8);
    u8 *place = to + PLACE_OF(row, c, K_PITCH);
    if (n0 + row < n)
      TAKE_EIGHT(place, k + (i64)(n0 + row) * sk, c);
    else
      *(u4 *)place = make_uint4(0, 0, 0, 0);
  }
  to += BN * K_PITCH;
  for (int i = LANE; i < BN * (ACROSS / 8); i += LANES) {
    int row = i / (ACROSS / 8), c = i % (ACROSS / 8);
    u8 *place = to + PLACE_OF(row, c, V_PITCH);
    if (n0 + row < n)
      TAKE_EIGHT(place, v + (i64)(n0 + row) * sv, c);
    else
      *(u4 *)place = make_uint4(0, 0, 0, 0);
  }
}

#if READS_EARLY
#ifdef W_Q8_0
#define LINES_OF(width) MAX(1, (width) / 32 * 34 / 128)
#else
#define LINES_OF(width) MAX(1, (width) * 2 / 128)
#endif
#define ASKED_ROWS (ALONG ? 6 * BN : 2 * BN)

/* Let the first rows from one on come near, which reads nothing: they come to the L2 cache, where what is written
 * meanwhile goes too. */
FN void ask_for_rows(const u8 *row, i64 step, int from, int to, int lines) {
  int count = (MIN(to, from + ASKED_ROWS) - from) * lines;
  for (int i = LANE; i < count; i += LANES) ASK_FOR(row + (i64)(from + i / lines) * step + i % lines * 128);
}
#endif

/* Groups: (T * share / BM, G, splits); the last rows, which see most, come first.
 *
 * With READS_EARLY the predecessor does not write bounds, and waited for its own one first: what a group sees is known,
 * and requested, while it still runs. */
#undef KERNEL_BOUNDS
#define KERNEL_BOUNDS __launch_bounds__(LANES, RESIDENT)
KERNEL(flash_attention)(GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *q, Tens tq,
                        GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *sinks, Tens ts, GLOBAL const u8 *bounds,
                        Tens tb, GLOBAL u8 *y, Tens ty, GLOBAL u8 *parts, int has, float scale, float cap, int share,
                        int blocks, int splits, GLOBAL u8 *halves) {
  LOCAL_BYTES(local);
#if SKIPS
  LOCAL int ends[WARPS]; /* not in registers, which are all in use */
#endif
  EARLY_LET_GO();
#if !READS_EARLY
  EARLY_WAIT();
#endif
#if GROUP_MMA
  u8 *stages = local + (-LOCAL_ADDRESS(local) & (ALIGNMENT - 1));
#else
  u8 *queries = local, *stages = local + PLANES * BM * K_PITCH;
#endif
  int n = tk.n[1], tokens = tq.n[1], heads = tq.n[2], group = GROUP(1), split = GROUP(2);
  int row0 = (blocks - 1 - GROUP(0)) * BM, rows = MIN(BM, tokens * share - row0);
  int g = WARP_LANE / 4, t = WARP_LANE % 4;

  /* What some token of the group sees is [from, to), and all of it is seen by all in [inner_from, inner_to). */
  int from = n, to = 0, inner_from = 0, inner_to = n;
  if (has & BOUNDS) {
    for (int i = row0 / share + WARP_LANE; i <= (row0 + rows - 1) / share; i += WARP) {
      int low = MAX(0, READ_I32(bounds + tb.off + i * tb.s[2]));
      int high = MIN(n, READ_I32(bounds + tb.off + i * tb.s[2] + tb.s[3]));
      if (low < high) from = MIN(from, low), to = MAX(to, high);
      inner_from = MAX(inner_from, low), inner_to = MIN(inner_to, high);
    }
    from = least_(from), to = -least_(-to), inner_from = -least_(-inner_from), inner_to = least_(inner_to);
  } else {
    from = 0, to = n;
  }
  if (splits > 1) {
    int each = (MAX(0, to - from) + splits - 1) / splits;
    each = (each + BN - 1) / BN * BN;
    from += split * each;
    to = MIN(to, from + each);
  }

  const u8 *keys = k + tk.off + group * tk.s[2], *values = v + tv.off + group * tv.s[2];
#if READS_EARLY
  ask_for_rows(keys, tk.s[1], from, to, LINES_OF(WIDTH));
  ask_for_rows(values, tv.s[1], from, to, LINES_OF(ACROSS));
  EARLY_WAIT();
#endif
  int steps = from < to ? (to - from + BN - 1) / BN : 0;
  REQUEST(0);
#if GROUP_MMA
  u32 a_of_q[WIDTH / 16][4];
  UNROLL for (int half = 0; half < 2; half++) {
    int r = FIRST_ROW + 8 * half + g, at = row0 + MIN(r, rows - 1), token = at / share;
    GLOBAL const u8 *row = q + tq.off + token * tq.s[1] + (group * share + at - token * share) * tq.s[2] + 8 * t;
    UNROLL for (int d = 0; d < WIDTH / 8; d++) {
      float2 x = *(const float2 *)(row + 32 * d);
      a_of_q[d / 2][d % 2 * 2 + half] = PAIR_OF(x.x, x.y);
    }
  }
#else
  /* Many loads of a lane are under way before the first one is waited for. */
  for (int begin = LANE; begin < BM * (WIDTH / 4); begin += LANES * LOADS) {
    float4 x[LOADS];
    UNROLL for (int u = 0; u < LOADS; u++) {
      int i = begin + u * LANES, r = i / (WIDTH / 4), d = i % (WIDTH / 4), at = row0 + r, token = at / share;
      x[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (r < rows)
        x[u] = *(const float4 *)(q + tq.off + token * tq.s[1] + (group * share + at - token * share) * tq.s[2] + 16 * d);
    }
    UNROLL for (int u = 0; u < LOADS; u++) {
      int i = begin + u * LANES, r = i / (WIDTH / 4), d = i % (WIDTH / 4);
      if (r >= BM) break;
      UNROLL for (int p = 0; p < PLANES; p++) {
        uint2 pairs = make_uint2(PAIR_OF(x[u].x, x[u].y), PAIR_OF(x[u].z, x[u].w));
        *(uint2 *)(queries + (p * BM + r) * K_PITCH + 8 * d) = pairs;
        x[u].x -= LOW_OF(pairs.x), x[u].y -= HIGH_OF(pairs.x);
        x[u].z -= LOW_OF(pairs.y), x[u].w -= HIGH_OF(pairs.y);
      }
    }
  }
#endif

  int first[MT][2], end[MT][2];
#if MASKED
  i64 hides[MT][2];
#endif
  UNROLL for (int i = 0; i < 2 * MT; i++) {
    int r = FIRST_ROW + 8 * i + g, token = (row0 + r) / share;
    first[i / 2][i % 2] = 0, end[i / 2][i % 2] = r < rows ? n : 0;
    if (r < rows && (has & BOUNDS)) {
      first[i / 2][i % 2] = READ_I32(bounds + tb.off + token * tb.s[2]);
      end[i / 2][i % 2] = MIN(n, READ_I32(bounds + tb.off + token * tb.s[2] + tb.s[3]));
    }
#if MASKED
    int head = group * share + (row0 + r) % share;
    hides[i / 2][i % 2] = r < rows ? tm.off + head * tm.s[1] + token * tm.s[2] : 0;
#endif
  }

  float o[MT][ACROSS / 8][4], top[MT][2], total[MT][2];
  UNROLL for (int i = 0; i < MT * ACROSS / 2; i++) o[i / (ACROSS / 2)][i % (ACROSS / 2) / 4][i % 4] = 0.0f;
  UNROLL for (int i = 0; i < 2 * MT; i++) top[i / 2][i % 2] = HIDDEN, total[i / 2][i % 2] = 0.0f;
  float factor = CAPPED ? scale / cap : scale * LOG2E, height = cap * LOG2E;
  int it = 0;
#if GROUP_MMA
  u32 a_of_s[KEYS / 16][4];
#endif
#if SKIPS
  /* Steps in which some row of a warp sees something; in the others it only helps to fetch. */
  {
    int least = n, most = 0;
    UNROLL for (int i = 0; i < 2 * MT; i++) {
      if (first[i / 2][i % 2] >= end[i / 2][i % 2]) continue;
      least = MIN(least, first[i / 2][i % 2]), most = MAX(most, end[i / 2][i % 2]);
    }
    least = least_(least), most = MIN(to, -least_(-most));
    ends[WARP_INDEX] = most > from ? (most - from + BN - 1) / BN : 0;
    for (int begin = MIN(steps, MAX(0, least - from) / BN); it < begin; it++) ADVANCE(it);
  }
  for (; it < ends[WARP_INDEX]; it++) {
#else
  int is_idle = !GROUP_MMA && FIRST_ROW >= rows;
  for (; it < steps; it++) {
#endif
    int n0 = from + it * BN;
    const u8 *ks = stages + it % STAGES * STAGE_NBYTES, *vs = ks + BN * K_PITCH;
    ADVANCE(it);
#if !SKIPS
    if (is_idle) continue;
#endif

    float s[MT][KEYS / 8][4];
    UNROLL for (int i = 0; i < MT * KEYS / 2; i++) s[i / (KEYS / 2)][i % (KEYS / 2) / 4][i % 4] = 0.0f;
#if GROUP_MMA
    float *logits = &s[0][0][0];
    UNROLL for (int i = 0; i < KEYS / 2; i++) HELD(logits[i]);
    PRODUCTS_OPEN();
    UNROLL for (int d = 0; d < WIDTH / 16; d++) {
      UNROLL for (int j = 0; j < KEYS / 64; j++) {
        MULTIPLY_GROUP(logits + 32 * j, a_of_q[d], ks + d / 4 * (BN * 128) + j * (64 * 128) + d % 4 * 32, d > 0);
      }
    }
    PRODUCTS_CLOSE();
    PRODUCTS_AWAIT(0); /* also for those of shares */
    UNROLL for (int i = 0; i < KEYS / 2; i++) HELD(logits[i]);
    UNROLL for (int i = 0; i < ACROSS / 2; i++) HELD(o[0][i / 4][i % 4]);
#else
    UNROLL for (int d = 0; d < WIDTH / 16; d++) {
      u32 a[MT * PLANES][4];
      UNROLL for (int m = 0; m < MT * PLANES; m++) {
        int row = m / MT * BM + FIRST_ROW + 16 * (m % MT) + WARP_LANE % 16;
        LOAD_MATRICES(a[m], queries + row * K_PITCH + 32 * d + WARP_LANE / 16 * 16);
      }
      UNROLL for (int j = 0; j < KEYS / 16; j++) {
        u32 b[4];
        int row = FIRST_KEY + 16 * j + WARP_LANE % 8 + WARP_LANE / 16 * 8;
        LOAD_MATRICES(b, ks + row * K_PITCH + 32 * d + WARP_LANE / 8 % 2 * 16);
        UNROLL for (int m = 0; m < MT * PLANES; m++) {
          MULTIPLY_HALVES(s[m % MT][2 * j], a[m], b);
          MULTIPLY_HALVES(s[m % MT][2 * j + 1], a[m], b + 2);
        }
      }
    }
#endif

    int is_inner = n0 >= inner_from && n0 + BN <= inner_to && n0 + BN <= to && !MASKED;
    UNROLL for (int m = 0; m < MT; m++) {
      UNROLL for (int half = 0; half < 2; half++) {
        float highest = top[m][half];
        UNROLL for (int j = 0; j < KEYS / 8; j++) {
          UNROLL for (int i = 2 * half; i < 2 * half + 2; i++) {
            float x = s[m][j][i] * factor;
            if (CAPPED) x = height * TANH(x);
            if (!is_inner) {
              int at = n0 + FIRST_KEY + 8 * j + 2 * t + i % 2;
              int is_seen = at >= first[m][half] && at < end[m][half] && at < to;
#if MASKED
              if (is_seen) x += LOG2E * READ_F32(mask + hides[m][half] + at * tm.s[3]);
#endif
              x = is_seen ? x : HIDDEN;
            }
            s[m][j][i] = x;
            highest = MAX(highest, x);
          }
        }
        UNROLL for (int lanes = 1; lanes < 4; lanes *= 2) {
          float other = __shfl_xor_sync(ALL_LANES, highest, lanes);
          highest = MAX(highest, other);
        }
        float base = highest == HIDDEN ? 0.0f : highest, shrink = EXP2(top[m][half] - base), sum = 0.0f;
        top[m][half] = highest;
        UNROLL for (int j = 0; j < KEYS / 8; j++) {
          UNROLL for (int i = 2 * half; i < 2 * half + 2; i++) {
            s[m][j][i] = EXP2(s[m][j][i] - base);
            sum += s[m][j][i];
          }
        }
        total[m][half] = total[m][half] * shrink + sum;
        UNROLL for (int e = 0; e < ACROSS / 8; e++) o[m][e][2 * half] *= shrink, o[m][e][2 * half + 1] *= shrink;
      }
    }

#if GROUP_MMA
    UNROLL for (int j = 0; j < KEYS / 16; j++) {
      UNROLL for (int i = 0; i < 4; i++) {
        a_of_s[j][i] = PAIR_OF(s[0][2 * j + i / 2][i % 2 * 2], s[0][2 * j + i / 2][i % 2 * 2 + 1]);
      }
    }
    UNROLL for (int i = 0; i < ACROSS / 2; i++) HELD(o[0][i / 4][i % 4]);
    PRODUCTS_OPEN();
    UNROLL for (int j = 0; j < KEYS / 16; j++) {
      UNROLL for (int e = 0; e < ACROSS / 64; e++) {
        MULTIPLY_TURNED(&o[0][8 * e][0], a_of_s[j], vs + e * (BN * 128) + j * (16 * 128), 1);
      }
    }
    PRODUCTS_CLOSE();
  }
  PRODUCTS_AWAIT(0);
  UNROLL for (int i = 0; i < ACROSS / 2; i++) HELD(o[0][i / 4][i % 4]);
#else
    UNROLL for (int j = 0; j < KEYS / 16; j++) {
      u32 a[MT * PLANES][4];
      UNROLL for (int i = 0; i < 4 * MT * PLANES; i++) {
        int m = i / 4, plane = m / MT, of = i % 4;
        float *pair = &s[m % MT][2 * j + of / 2][of % 2 * 2];
        a[m][of] = PAIR_OF(pair[0], pair[1]);
        if (plane + 1 < PLANES) pair[0] -= LOW_OF(a[m][of]), pair[1] -= HIGH_OF(a[m][of]);
      }
      UNROLL for (int e = 0; e < ACROSS / 16; e++) {
        u32 b[4];
        LOAD_TURNED(b, vs + (FIRST_KEY + 16 * j + WARP_LANE % 16) * V_PITCH + 32 * e + WARP_LANE / 16 * 16);
        UNROLL for (int m = 0; m < MT * PLANES; m++) {
          MULTIPLY_HALVES(o[m % MT][2 * e], a[m], b);
          MULTIPLY_HALVES(o[m % MT][2 * e + 1], a[m], b + 2);
        }
      }
    }
  }
#endif
#if SKIPS
  for (; it < steps; it++) ADVANCE(it);
#endif
#if ALONG
  /* What the warps have of each row, with the largest logit and the sum behind all. */
  float *partial = (float *)stages;
  float2 *ends_of = (float2 *)(partial + WARPS * BM * ACROSS);
  BARRIER();
  UNROLL for (int i = 0; i < 2 * MT; i++) {
    int m = i / 2, half = i % 2, r = 8 * i + g;
    float all = total[m][half];
    UNROLL for (int lanes = 1; lanes < 4; lanes *= 2) all += __shfl_xor_sync(ALL_LANES, all, lanes);
    if (t == 0) ends_of[WARP_INDEX * BM + r] = make_float2(top[m][half], all);
    UNROLL for (int e = 0; e < ACROSS / 8; e++) {
      float2 *to = (float2 *)(partial + (WARP_INDEX * BM + r) * ACROSS + 8 * e + 2 * t);
      *to = make_float2(o[m][e][2 * half], o[m][e][2 * half + 1]);
    }
  }
  BARRIER();
  for (int i = LANE; i < rows * (ACROSS / 4); i += LANES) {
    int r = i / (ACROSS / 4), e = i % (ACROSS / 4) * 4;
    int token = (row0 + r) / share, head = group * share + (row0 + r) % share;
    float highest = HIDDEN, all = 0.0f;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int w = 0; w < WARPS; w++) highest = MAX(highest, ends_of[w * BM + r].x);
    float sink = HIDDEN;
    if ((has & SINKS) && splits == 1) sink = LOG2E * READ_F32(sinks + ts.off + head * ts.s[3]);
    highest = MAX(highest, sink);
    float base = highest == HIDDEN ? 0.0f : highest;
    UNROLL for (int w = 0; w < WARPS; w++) {
      float by = EXP2(ends_of[w * BM + r].x - base);
      float4 a = *(const float4 *)(partial + (w * BM + r) * ACROSS + e);
      all += by * ends_of[w * BM + r].y;
      x.x += by * a.x, x.y += by * a.y, x.z += by * a.z, x.w += by * a.w;
    }
    float by = 1.0f;
    u8 *place;
    if (splits > 1) {
      place = parts + (((i64)split * tokens + token) * heads + head) * (4 * (ACROSS + 2));
      if (e == 0) *(float2 *)(place + 4 * ACROSS) = make_float2(MAX(highest * LN2, LOWEST), all);
    } else {
      place = y + ty.off + token * ty.s[1] + head * ty.s[2];
      all += EXP2(sink - base);
      by = all == 0.0f ? 0.0f : 1.0f / all;
    }
    float2 *to = (float2 *)(place + 4 * e); /* rows of parts are no multiples of 16 bytes */
    to[0] = make_float2(x.x * by, x.y * by), to[1] = make_float2(x.z * by, x.w * by);
  }
#else
  if (FIRST_ROW >= rows) return;

  UNROLL for (int m = 0; m < MT; m++) {
    UNROLL for (int half = 0; half < 2; half++) {
      int r = FIRST_ROW + 16 * m + 8 * half + g;
      int token = (row0 + r) / share, head = group * share + (row0 + r) % share;
      float all = total[m][half];
      UNROLL for (int lanes = 1; lanes < 4; lanes *= 2) all += __shfl_xor_sync(ALL_LANES, all, lanes);
      float by = 1.0f;
      u8 *place;
      if (splits > 1) {
        place = parts + (((i64)split * tokens + token) * heads + head) * (4 * (ACROSS + 2));
        if (r < rows && t == 0) {
          /* flash_join takes natural units. */
          *(float2 *)(place + 4 * ACROSS) = make_float2(MAX(top[m][half] * LN2, LOWEST), all);
        }
      } else {
        place = y + ty.off + token * ty.s[1] + head * ty.s[2];
        float sink = HIDDEN;
        if ((has & SINKS) && r < rows) sink = LOG2E * READ_F32(sinks + ts.off + head * ts.s[3]);
        float highest = MAX(top[m][half], sink), base = highest == HIDDEN ? 0.0f : highest;
        by = EXP2(top[m][half] - base);
        all = all * by + EXP2(sink - base);
        by = all == 0.0f ? 0.0f : by / all;
      }
      if (r >= rows) continue;
      UNROLL for (int e = 0; e < ACROSS / 8; e++) {
        float2 x = make_float2(o[m][e][2 * half] * by, o[m][e][2 * half + 1] * by);
        *(float2 *)(place + 32 * e + 8 * t) = x;
#if HALVES
        *(u32 *)(halves + 2 * (((i64)token * heads + head) * ACROSS + 8 * e + 2 * t)) = bf16_pair(x.x, x.y);
#endif
      }
    }
  }
#endif
}
