/* Attention of many queries on units that multiply matrices of 16-bit numbers, with operands as in attention_blocks.cl.
 *
 * Each factor is the sum of two numbers of bf16, which keep 16 bits at any exponent; the product of the lower ones is left
 * out. A group has ROWS rows of queries and takes BC rows of keys and values at a time; a warp has 16 rows. Local memory
 * has pairs of neighbouring elements of a key, and those of neighbouring keys of a column of values. What lanes have of a tile
 * of logits is what they need of the shares, so these stay in registers.
 *
 * Parts of infinities and NaN would meet zeros: a group that comes by one says so in `redo`, and attention_blocks computes its
 * rows again.
 */
#define MASK 1
#define SINKS 2
#define BOUNDS 4
#define ROWS (LANES / WARP * 16)
#define LOWEST FLOAT_OF_BITS(0xff7fffffu) /* finite: exp(-inf - LOWEST) is 0 */
#define HIDDEN FLOAT_OF_BITS(0xff800000u)
#define K_PITCH (WIDTH / 2 + 4) /* words; eight rows lie in different banks */
#define V_PITCH (BC / 2 + 4)
#if defined(W_BF16)
#define K_PARTS 1 /* the lower part is zero */
#else
#define K_PARTS 2
#endif

/* Two floats as pairs of their upper and of their lower parts; returns whether one is not finite. */
FN int split_pair(u32 *pairs, float a, float b) {
  u32 x = BITS_OF_FLOAT(a), y = BITS_OF_FLOAT(b);
  float c = a - FLOAT_OF_BITS(x & 0xffff0000u), d = b - FLOAT_OF_BITS(y & 0xffff0000u);
  pairs[0] = PERMUTED(x, y, 0x7632u), pairs[1] = PERMUTED(BITS_OF_FLOAT(c), BITS_OF_FLOAT(d), 0x7632u);
  return MAX(x & 0x7fffffffu, y & 0x7fffffffu) >= 0x7f800000u;
}

FN int copy_keys(LOCAL_PTR u32 *to, GLOBAL const u8 *k, i64 sn, int count) {
  int bad = 0;
  for (int i = LANE; i < BC * WIDTH / ELEMS_PER_CHUNK; i += LANES) {
    int c = i / (WIDTH / ELEMS_PER_CHUNK), e = i % (WIDTH / ELEMS_PER_CHUNK) * ELEMS_PER_CHUNK;
    float v[ELEMS_PER_CHUNK];
    unpack(v, LOAD16(k + MIN(c, count - 1) * sn + e * W_NBYTES));
    UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j += 2) {
      u32 pairs[2];
      bad |= split_pair(pairs, v[j], v[j + 1]);
      UNROLL for (int part = 0; part < K_PARTS; part++)
        to[part * BC * K_PITCH + c * K_PITCH + (e + j) / 2] = pairs[part];
    }
  }
  return bad;
}

FN int copy_values(LOCAL_PTR u32 *to, GLOBAL const u8 *v, i64 sn, int count) {
  int bad = 0;
  for (int i = LANE; i < BC / 2 * ACROSS / ELEMS_PER_CHUNK; i += LANES) {
    int c = i % (BC / 2) * 2, e = i / (BC / 2) * ELEMS_PER_CHUNK;
    float a[ELEMS_PER_CHUNK], b[ELEMS_PER_CHUNK];
    unpack(a, LOAD16(v + MIN(c, count - 1) * sn + e * W_NBYTES));
    unpack(b, LOAD16(v + MIN(c + 1, count - 1) * sn + e * W_NBYTES));
    UNROLL for (int j = 0; j < ELEMS_PER_CHUNK; j++) {
      u32 pairs[2];
      bad |= split_pair(pairs, a[j], b[j]);
      UNROLL for (int part = 0; part < K_PARTS; part++)
        to[part * ACROSS * V_PITCH + (e + j) * V_PITCH + c / 2] = pairs[part];
    }
  }
  return bad;
}

/* sum += a b, with b of row `row` of a tile from word `word` on. */
FN void multiply_parts(float *sum, const u32 *high, const u32 *low, LOCAL_PTR const u32 *tile, int part, int at,
                       LOCAL_PTR u32 *scratch) {
  u32 b[2];
  b[0] = tile[at], b[1] = tile[at + 4];
  MULTIPLY_HALVES(sum, high, b, scratch);
  MULTIPLY_HALVES(sum, low, b, scratch);
#if K_PARTS == 2
  b[0] = tile[part + at], b[1] = tile[part + at + 4];
  MULTIPLY_HALVES(sum, high, b, scratch);
#endif
}

/* Groups: (T * share / ROWS, G). */
KERNEL(attention_halves)(GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv, GLOBAL const u8 *q, Tens tq,
                         GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *sinks, Tens ts, GLOBAL const u8 *bounds,
                         Tens tb, GLOBAL u8 *y, Tens ty, GLOBAL i32 *redo, int has, float scale, float cap, int share) {
  LOCAL u32 keys[K_PARTS * BC * K_PITCH];
  LOCAL u32 values[K_PARTS * ACROSS * V_PITCH];
  LOCAL u32 scratch[HALVES_WORDS * LANES];
  LOCAL i32 is_bad;
  int g = WARP_LANE / 4, t = WARP_LANE % 4, n = tk.n[1], all = tq.n[1] * share, group = GROUP(1), bad = 0;
  int row0 = GROUP(0) * ROWS, last = MIN(row0 + ROWS, all) - 1, from = n, to = 0;
  int first[2], end[2], head[2], token[2], row = row0 + WARP_INDEX * 16 + g;
  float top[2], total[2], sums[ACROSS / 2];
  u32 high[WIDTH / 4], low[WIDTH / 4]; /* of the queries */

  if (LANE == 0) is_bad = 0;
  for (int i = row0 / share; i <= last / share; i++) {
    int begin = 0, stop = n;
    if (has & BOUNDS) {
      begin = MAX(0, READ_I32(bounds + tb.off + i * tb.s[2]));
      stop = MIN(n, READ_I32(bounds + tb.off + i * tb.s[2] + tb.s[3]));
    }
    if (begin < stop) from = MIN(from, begin), to = MAX(to, stop);
  }
  UNROLL for (int i = 0; i < 2; i++) {
    int r = MIN(row + i * 8, last);
    head[i] = group * share + r % share, token[i] = r / share;
    float sink = (has & SINKS) ? READ_F32(sinks + ts.off + head[i] * ts.s[3]) : LOWEST;
    top[i] = MAX(sink, LOWEST);
    total[i] = sink > LOWEST && t == 0 ? 1.0f : 0.0f;
    first[i] = (has & BOUNDS) ? READ_I32(bounds + tb.off + token[i] * tb.s[2]) : 0;
    end[i] = (has & BOUNDS) ? MIN(n, READ_I32(bounds + tb.off + token[i] * tb.s[2] + tb.s[3])) : n;
    UNROLL for (int d = 0; d < WIDTH; d += 8) {
      GLOBAL const u8 *from_q = q + tq.off + token[i] * tq.s[1] + head[i] * tq.s[2] + (d + 2 * t) * tq.s[3];
      u32 pairs[2];
      bad |= split_pair(pairs, READ_F32(from_q), READ_F32(from_q + tq.s[3]));
      high[d / 4 + i] = pairs[0], low[d / 4 + i] = pairs[1];
    }
  }
  UNROLL for (int i = 0; i < ACROSS / 2; i++) sums[i] = 0.0f;

  for (int n0 = from; n0 < to; n0 += BC) {
    int count = MIN(BC, to - n0);
    float x[BC / 2];
    BARRIER(); /* nobody reads the tiles of before */
    bad |= copy_keys(keys, k + tk.off + group * tk.s[2] + n0 * tk.s[1], tk.s[1], count);
    bad |= copy_values(values, v + tv.off + group * tv.s[2] + n0 * tv.s[1], tv.s[1], count);
    BARRIER();
    UNROLL for (int i = 0; i < BC / 2; i++) x[i] = 0.0f;
    UNROLL_MEETING for (int d = 0; d < WIDTH; d += 16) {
      UNROLL_MEETING for (int c = 0; c < BC; c += 8)
        multiply_parts(x + c / 2, high + d / 4, low + d / 4, keys, BC * K_PITCH, (c + g) * K_PITCH + d / 2 + t, scratch);
    }
    float most[2];
    most[0] = top[0], most[1] = top[1];
    UNROLL for (int i = 0; i < BC / 2; i++) {
      int r = i / 2 % 2, c = n0 + i / 4 * 8 + 2 * t + i % 2;
      float z = x[i] * scale;
      if (cap > 0.0f) z = TANH(z / cap) * cap;
      if ((has & MASK) && c < n0 + count)
        z += READ_F32(mask + tm.off + head[r] * tm.s[1] + token[r] * tm.s[2] + c * tm.s[3]);
      x[i] = c >= first[r] && c < end[r] && c < n0 + count ? z : HIDDEN;
      most[r] = MAX(x[i], most[r]);
    }
    UNROLL_MEETING for (int r = 0; r < 2; r++) {
      UNROLL_MEETING for (int m = 1; m < 4; m *= 2) {
        float other = EXCHANGED(most[r], m, (LOCAL_PTR float *)scratch);
        most[r] = MAX(other, most[r]);
      }
      float shrink = EXP(top[r] - most[r]);
      top[r] = most[r];
      total[r] *= shrink;
      UNROLL for (int i = 0; i < ACROSS / 2; i++) sums[i] *= i / 2 % 2 == r ? shrink : 1.0f;
    }
    UNROLL for (int i = 0; i < BC / 2; i++) {
      x[i] = EXP(x[i] - top[i / 2 % 2]);
      total[i / 2 % 2] += x[i];
    }
    UNROLL_MEETING for (int c = 0; c < BC; c += 16) {
      u32 upper[4], lower[4];
      UNROLL for (int i = 0; i < 4; i++) {
        u32 pairs[2];
        split_pair(pairs, x[c / 2 + 2 * i], x[c / 2 + 2 * i + 1]);
        upper[i] = pairs[0], lower[i] = pairs[1];
      }
      UNROLL_MEETING for (int e = 0; e < ACROSS; e += 8)
        multiply_parts(sums + e / 2, upper, lower, values, ACROSS * V_PITCH, (e + g) * V_PITCH + c / 2 + t, scratch);
    }
  }

  UNROLL_MEETING for (int r = 0; r < 2; r++) {
    UNROLL_MEETING for (int m = 1; m < 4; m *= 2) total[r] += EXCHANGED(total[r], m, (LOCAL_PTR float *)scratch);
  }
  UNROLL for (int i = 0; i < ACROSS / 2; i++) {
    int r = i / 2 % 2, e = i / 4 * 8 + 2 * t + i % 2;
    GLOBAL u8 *at = y + ty.off + token[r] * ty.s[1] + head[r] * ty.s[2] + e * ty.s[3];
    if (row + r * 8 <= last) F32_AT(at) = total[r] == 0.0f ? 0.0f : sums[i] / total[r];
  }
  BARRIER();
  if (bad) is_bad = 1;
  BARRIER();
  if (LANE == 0) redo[GROUP(1) * ((all + ROWS - 1) / ROWS) + GROUP(0)] = is_bad;
}
