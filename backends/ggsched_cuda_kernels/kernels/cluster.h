/* Groups of a cluster, SPLITS along the first axis: how they meet, and write to local memory of each other. From compute
 * capability 9.0 on; one group by itself anywhere. They meet in two steps: what was written before the first one, also to
 * local memory of others, is there after the second. */
#if SPLITS > 1
FN void cluster_arrive_() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
FN void cluster_await_() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
FN u32 in_group_(const void *p, int group) {
  u32 here = (u32)__cvta_generic_to_shared(p), there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(group));
  return there;
}
FN void put4_(float4 *p, int group, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(in_group_(p, group)), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w)
               : "memory");
}
FN void put2_(float2 *p, int group, float2 x) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(in_group_(p, group)), "f"(x.x), "f"(x.y) : "memory");
}
#else
FN void cluster_arrive_() {}
FN void cluster_await_() { BARRIER(); }
FN void put4_(float4 *p, int, float4 x) { *p = x; }
FN void put2_(float2 *p, int, float2 x) { *p = x; }
#endif
