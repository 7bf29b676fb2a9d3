/* Bytes [from, to) of y as a pattern that repeats every four bytes of the buffer.
 *
 * Groups: (words of four bytes / span). For devices whose own command fails beyond 2 GiB.
 */
KERNEL(fill)(GLOBAL u8 *y, i64 from, i64 to, i32 word, i64 span) {
  i64 first = from / 4 + GROUP(0) * span, last = MIN(first + span, (to + 3) / 4);
  for (i64 at = 4 * (first + LANE); at < 4 * last; at += 4 * LANES) {
    if (at >= from && at + 4 <= to) {
      *(GLOBAL i32 *)(y + at) = word;
    } else {
      for (int k = 0; k < 4; ++k)
        if (at + k >= from && at + k < to) y[at + k] = (u8)(word >> 8 * k);
    }
  }
}
