/* Thread blocks of a cluster, SPLITS along the first axis: their barrier, and access to the shared memory of each other.
 * From compute capability 9.0 on; one thread block by itself anywhere. The barrier has two steps: what was written before
 * the first one, also to shared memory of others, is there after the second. */
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
FN float4 get4_(const float4 *p, int group) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(in_group_(p, group))
               : "memory");
  return x;
}
#else
FN void cluster_arrive_() {}
FN void cluster_await_() { BARRIER(); }
FN void put4_(float4 *p, int, float4 x) { *p = x; }
FN void put2_(float2 *p, int, float2 x) { *p = x; }
FN float4 get4_(const float4 *p, int) { return *p; }
#endif
