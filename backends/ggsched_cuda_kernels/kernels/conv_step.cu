/* One token of a short convolution, as short_conv, a copy of its states and silu would do one after the other. Behind
 * the text of recurrent.cl.
 *
 * A lane does a channel: it reads the kept rows of every slot before it writes any, so that the states may be
 * written over. state and kept (1, S, TAPS - 1, C), kept being where the states are copied to; x and y (1, 1, 1, C)
 * with y's rows behind the first the states afterwards; w (1, 1, C, TAPS); z, with SILU, as the first row of y.
 * Groups: C / LANES.
 */
KERNEL(conv_step)(GLOBAL const u8 *state, Tens ts, GLOBAL const u8 *x, Tens tx, GLOBAL const u8 *w, Tens tw,
                  GLOBAL const u8 *slots, Tens tl, GLOBAL const u8 *positions, Tens tp, GLOBAL u8 *y, Tens ty,
                  GLOBAL u8 *kept, Tens tk, GLOBAL u8 *z, Tens tz, GLOBAL i32 *fault, int code) {
  int c = GROUP(0) * LANES + LANE, slot = READ_I32(slots + tl.off);
  int bad = bad_id(slot, ts.n[1], fault, code), begins = READ_I32(positions + tp.off) == 0;
  if (c >= tx.n[3]) return;
  float now = READ_F32(x + tx.off + c * tx.s[3]), sum = 0.0f;
  for (int s = 0; s < ts.n[1]; s++) {
    float rows[TAPS];
    int is_own = !bad && s == slot;
    UNROLL for (int r = 0; r < TAPS - 1; r++)
      rows[r] = is_own && begins ? 0.0f : READ_F32(state + ts.off + s * ts.s[1] + r * ts.s[2] + c * ts.s[3]);
    rows[TAPS - 1] = now;
    if (is_own) {
      UNROLL for (int r = 0; r < TAPS; r++) sum += rows[r] * READ_F32(w + tw.off + c * tw.s[2] + r * tw.s[3]);
    }
    UNROLL for (int r = 0; r < TAPS - 1; r++) {
      float moved = is_own ? rows[r + 1] : rows[r];
      F32_AT(y + ty.off + (1 + s * (TAPS - 1) + r) * ty.s[2] + c * ty.s[3]) = moved;
      F32_AT(kept + tk.off + s * tk.s[1] + r * tk.s[2] + c * tk.s[3]) = moved;
    }
  }
  F32_AT(y + ty.off + c * ty.s[3]) = sum;
#if SILU_TOO
  F32_AT(z + tz.off + c * tz.s[3]) = sum / (EXP(-sum) + 1.0f);
#endif
}
