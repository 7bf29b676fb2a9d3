/* y = softmax(q k^T * scale + mask) v for batches of matrices of f32; scores stay in registers. With CHOOSES rows that are not seen are
 * one other element; with HALVES y is written besides as bf16, for the product that follows. Behind mma.h and halves.h.
 *
 * Thread blocks: one for BM rows of q of a batch, 16 for each warp. It goes through k and v BN rows at a time, which it keeps in
 * shared memory, and rescales sums where a row's maximum grows. Factors are rounded as the convolutions of a precision round them:
 * to bf16 (W_BF16) or TF32. With EXACT each is the sum of two of TF32, and the product of the lower ones is left out.
 *
 * WIDTH and ACROSS are the columns of k and of v, filled up with zeros to whole products. The order of elements of a sum is free: a
 * lane has columns 2 t and 2 t + 1 of the scores, and takes them as words t and t + 4 of shares in TF32. VEC: rows of q, k and v are read
 * four elements at a time; VEC_Y: those of y are written two at a time. */
#define BM (LANES / 2)
#ifdef W_BF16
#define OF_WORD 2
#define MULTIPLY MULTIPLY_HALVES
#define V_PITCH (ACROSS + 8)
#else
#define OF_WORD 1
#define MULTIPLY MULTIPLY_TF32
#define V_PITCH (ACROSS + 4)
#endif
#define K_PITCH (WIDTH / OF_WORD + 4)
#define OF_STEP (8 * OF_WORD) /* elements of the sum of a product */
#define LOWEST FLOAT_OF_BITS(0xff800000u)

FN float4 four(GLOBAL const u8 *p, i64 step, int left) {
#if VEC
  return left > 0 ? *(GLOBAL const float4 *)p : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#else
  float v[4];
  UNROLL for (int e = 0; e < 4; e++) v[e] = e < left ? READ_F32(p + e * step) : 0.0f;
  return make_float4(v[0], v[1], v[2], v[3]);
#endif
}
FN u32 word_of(float x) { return EXACT ? BITS_OF_FLOAT(x) : TF32_OF(x); }

/* The part of x that TF32 has, and what is left of a finite x. */
FN void split(u32 bits, u32 *high, u32 *low) {
  float x = FLOAT_OF_BITS(bits);
  *high = TF32_OF(x) & 0xffffe000u;
  float rest = x - FLOAT_OF_BITS(*high);
  *low = TF32_OF(rest == rest ? rest : 0.0f);
}
/* A factor of 16 rows; in parts, if it is. */
typedef struct {
  u32 high[4], low[4];
} Factor;

FN Factor factor_of(const u32 *words) {
  Factor a;
  UNROLL for (int i = 0; i < 4; i++) {
#if EXACT
    split(words[i], a.high + i, a.low + i);
#else
    a.high[i] = words[i];
#endif
  }
  return a;
}
FN void multiply(float *sum, const Factor a, const u32 *b) {
#if EXACT
  u32 high[2], low[2];
  UNROLL for (int i = 0; i < 2; i++) split(b[i], high + i, low + i);
  MULTIPLY(sum, a.low, high);
  MULTIPLY(sum, a.high, low);
  MULTIPLY(sum, a.high, high);
#else
  MULTIPLY(sum, a.high, b);
#endif
}

KERNEL(batch_attention)(GLOBAL const u8 *q, Tens tq, GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv,
                        GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *seen, Tens ts, GLOBAL const u8 *other, i64 oo,
                        GLOBAL u8 *y, Tens ty, float scale, int blocks, GLOBAL u8 *halves) {
  LOCAL u4 kt4[BN * K_PITCH / 4];
  LOCAL u4 vt4[BN / OF_WORD * V_PITCH / 4];
  u32 *kt = (u32 *)kt4, *vt = (u32 *)vt4;
  int batch = GROUP(0) / blocks, outer = batch / tq.n[1], inner = batch % tq.n[1];
  int g = LANE % 32 / 4, t = LANE % 4, first = GROUP(0) % blocks * BM + LANE / 32 * 16 + g;
  int width = tq.n[3], across = ty.n[3], rows = tq.n[2], keys = tk.n[2];
#define BATCH_OF(p, t) ((p) + (t).off + outer * (t).s[0] + inner * (t).s[1])
  q = BATCH_OF(q, tq), k = BATCH_OF(k, tk), v = BATCH_OF(v, tv);
  u32 a[WIDTH / OF_STEP][4];
  UNROLL for (int i = 0; i < WIDTH / OF_STEP * 4; i++) {
    int word = i / 4 * 8 + t + i % 4 / 2 * 4;
    GLOBAL const u8 *row = q + (i64)MIN(first + i % 2 * 8, rows - 1) * tq.s[2];
    float x[OF_WORD];
    UNROLL for (int e = 0; e < OF_WORD; e++) {
      int column = word * OF_WORD + e;
      x[e] = column < width ? READ_F32(row + column * tq.s[3]) : 0.0f;
    }
#ifdef W_BF16
    a[i / 4][i % 4] = PAIR_OF(x[0], x[1]);
#else
    a[i / 4][i % 4] = word_of(x[0]);
#endif
  }
  float made[ACROSS / 8][4], top[2] = {LOWEST, LOWEST}, total[2] = {0.0f, 0.0f};
  UNROLL for (int i = 0; i < ACROSS / 2; i++) made[i / 4][i % 4] = 0.0f;
  for (int at = 0; at < keys; at += BN) {
    if (at) BARRIER();
    UNROLL for (int j = 0; j < BN * WIDTH / 4; j += LANES) {
      int i = j + LANE;
      if (BN * WIDTH / 4 % LANES && i >= BN * WIDTH / 4) break;
      int row = i / (WIDTH / 4), column = i % (WIDTH / 4) * 4;
      float4 x = four(k + (i64)(at + row) * tk.s[2] + column * tk.s[3], tk.s[3], at + row < keys ? width - column : 0);
      u32 *to = kt + row * K_PITCH + column / OF_WORD;
#ifdef W_BF16
      *(uint2 *)to = make_uint2(PAIR_OF(x.x, x.y), PAIR_OF(x.z, x.w));
#else
      *(u4 *)to = make_uint4(word_of(x.x), word_of(x.y), word_of(x.z), word_of(x.w));
#endif
    }
    UNROLL for (int j = 0; j < BN / OF_WORD * ACROSS / 4; j += LANES) {
      int i = j + LANE;
      if (BN / OF_WORD * ACROSS / 4 % LANES && i >= BN / OF_WORD * ACROSS / 4) break;
      int row = i / (ACROSS / 4), column = i % (ACROSS / 4) * 4;
      float4 x[OF_WORD];
      UNROLL for (int e = 0; e < OF_WORD; e++) {
        int key = at + row * OF_WORD + e;
        x[e] = four(v + (i64)key * tv.s[3] + column * tv.s[2], tv.s[2], key < keys ? across - column : 0);
      }
      u32 *to = vt + row * V_PITCH + column;
#ifdef W_BF16
      *(u4 *)to = make_uint4(PAIR_OF(x[0].x, x[1].x), PAIR_OF(x[0].y, x[1].y), PAIR_OF(x[0].z, x[1].z), PAIR_OF(x[0].w, x[1].w));
#else
      *(u4 *)to = make_uint4(word_of(x[0].x), word_of(x[0].y), word_of(x[0].z), word_of(x[0].w));
#endif
    }
    BARRIER();
    float p[BN / 8][4], high[2] = {top[0], top[1]};
    UNROLL for (int i = 0; i < BN / 2; i++) p[i / 4][i % 4] = 0.0f;
    UNROLL for (int s = 0; s < WIDTH / OF_STEP; s++) {
      Factor queries = factor_of(a[s]);
      UNROLL for (int n = 0; n < BN / 8; n++) {
        const u32 *key = kt + (8 * n + g) * K_PITCH + 8 * s + t;
        u32 b[2] = {key[0], key[4]};
        multiply(p[n], queries, b);
      }
    }
    UNROLL for (int n = 0; n < BN / 8; n++) {
      UNROLL for (int i = 0; i < 4; i++) {
        int column = at + 8 * n + 2 * t + i % 2;
        p[n][i] *= scale;
#if MASKED
        int row = MIN(first + i / 2 * 8, rows - 1);
        if (column < keys) p[n][i] += READ_F32(BATCH_OF(mask, tm) + row * tm.s[2] + column * tm.s[3]);
#endif
        if (column >= keys) p[n][i] = LOWEST;
        high[i / 2] = MAX(high[i / 2], p[n][i]);
      }
    }
    float base[2];
    UNROLL for (int r = 0; r < 2; r++) {
      UNROLL for (int lanes = 1; lanes < 4; lanes *= 2) {
        float other = __shfl_xor_sync(0xffffffffu, high[r], lanes);
        high[r] = MAX(high[r], other);
      }
      base[r] = high[r] == LOWEST ? 0.0f : high[r]; /* nothing was seen yet */
      float factor = EXP(top[r] - base[r]);
      top[r] = high[r], total[r] *= factor;
      UNROLL for (int e = 0; e < ACROSS / 8; e++) made[e][2 * r] *= factor, made[e][2 * r + 1] *= factor;
    }
    UNROLL for (int n = 0; n < BN / 8; n++) {
      UNROLL for (int i = 0; i < 4; i++) {
        p[n][i] = EXP(p[n][i] - base[i / 2]);
        total[i / 2] += p[n][i];
      }
    }
    UNROLL for (int s = 0; s < BN / OF_STEP; s++) {
#ifdef W_BF16
      float *one = p[2 * s], *two = p[2 * s + 1];
      u32 share[4] = {PAIR_OF(one[0], one[1]), PAIR_OF(one[2], one[3]), PAIR_OF(two[0], two[1]), PAIR_OF(two[2], two[3])};
      const u32 *value = vt + (8 * s + t) * V_PITCH + g;
#else
      u32 share[4] = {word_of(p[s][0]), word_of(p[s][2]), word_of(p[s][1]), word_of(p[s][3])};
      const u32 *value = vt + (8 * s + 2 * t) * V_PITCH + g;
#endif
      Factor shares = factor_of(share);
      UNROLL for (int e = 0; e < ACROSS / 8; e++) {
        u32 b[2] = {value[8 * e], value[(OF_WORD == 2 ? 4 : 1) * V_PITCH + 8 * e]};
        multiply(made[e], shares, b);
      }
    }
  }
  UNROLL for (int r = 0; r < 2; r++) {
    UNROLL for (int lanes = 1; lanes < 4; lanes *= 2) total[r] += __shfl_xor_sync(0xffffffffu, total[r], lanes);
    int row = first + 8 * r;
    if (row >= rows) continue;
    float unit = 1.0f / total[r];
#if CHOOSES
    int is_seen = *(BATCH_OF(seen, ts) + row * ts.s[2]);
#endif
    UNROLL for (int e = 0; e < ACROSS / 8; e++) {
      int column = 8 * e + 2 * t;
      i64 at = outer * ty.s[0] + inner * ty.s[1] + (i64)row * ty.s[2] + column * ty.s[3];
      GLOBAL u8 *to = y + ty.off + at;
      float one = made[e][2 * r] * unit, two = made[e][2 * r + 1] * unit;
#if CHOOSES
      if (!is_seen) one = two = READ_F32(other + oo);
#endif
#if VEC_Y
      if (column < across) *(float2 *)to = make_float2(one, two);
#if HALVES
      if (column < across) *(u32 *)(halves + at / 2) = bf16_pair(one, two);
#endif
#else
      if (column < across) F32_AT(to) = one;
      if (column + 1 < across) F32_AT(to + ty.s[3]) = two;
#endif
    }
  }
}
