/* y = softmax(q k * scale + mask) v of a few tokens, without the weights in memory. Behind attention.h, whose
 * operands it takes. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* Queries and caches as they are in memory. */
struct AsTheyAre {
  const u8 *q;
  i64 head, token;
  METHOD void begin(Work) {}
  METHOD const float4 *query(Work here, int r) {
    return (const float4 *)(q + (here.head + r) * head + here.token * token);
  }
  METHOD Eight key(Eight read, int, int) { return read; }
  METHOD Eight value(Eight read, int, int) { return read; }
  METHOD void end(Work) {}
};

KERNEL(attention)(GLOBAL const u8 *q, Tens tq, GLOBAL const u8 *k, Tens tk, GLOBAL const u8 *v, Tens tv,
                  GLOBAL const u8 *mask, Tens tm, GLOBAL const u8 *sinks, Tens ts, GLOBAL const u8 *bounds, Tens tb,
                  GLOBAL u8 *y, Tens ty, int has, float scale, int share, int each) {
  LOCAL_BYTES(local);
  EARLY_LET_GO();
  ask_for_rows_(work_(share, each), k, tk, v, tv);
  EARLY_WAIT();
  cluster_arrive_();
  AsTheyAre source = {q + tq.off, tq.s[1], tq.s[2]};
  attend_(source, work_(share, each), local, k, tk, v, tv, mask, tm, sinks, ts, bounds, tb, y, ty, has, scale);
}
#endif
