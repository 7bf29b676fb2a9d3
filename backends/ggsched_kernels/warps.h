/* Sums over lanes of a warp, for matrix-vector kernels; see warp_cuda.h for the words. */

/* Add up each of COUNT values over `SPAN` neighbouring lanes (powers of two). While there are several
 * values to a lane, lanes give half of them away and keep the other half, which takes fewer exchanges than
 * adding up one value after the other. In the end value[0] of lane i is the sum with number
 * i % SPAN * COUNT / SPAN, or, if COUNT > SPAN, value[j] that with number i % SPAN * COUNT / SPAN + j. */
#define ADD_OVER_LANES(value, COUNT, SPAN, scratch)        \
  do {                                                     \
    ADD_STEP_(value, (COUNT) / 2, (SPAN) / 2, scratch);    \
    ADD_STEP_(value, (COUNT) / 4, (SPAN) / 4, scratch);    \
    ADD_STEP_(value, (COUNT) / 8, (SPAN) / 8, scratch);    \
    ADD_STEP_(value, (COUNT) / 16, (SPAN) / 16, scratch);  \
    ADD_STEP_(value, (COUNT) / 32, (SPAN) / 32, scratch);  \
  } while (0)
#define ADD_STEP_(value, rest, mask, scratch)                          \
  if ((mask) > 0 && (rest) == 0) {                                     \
    value[0] += EXCHANGED(value[0], mask, scratch);                    \
  } else if ((mask) > 0) {                                             \
    int upper_ = WARP_LANE & (mask);                                   \
    UNROLL_MEETING for (int j_ = 0; j_ < (rest); j_++) {                       \
      float give_ = upper_ ? value[j_] : value[j_ + (rest)];           \
      float keep_ = upper_ ? value[j_ + (rest)] : value[j_];           \
      value[j_] = keep_ + EXCHANGED(give_, mask, scratch);             \
    }                                                                  \
  }
