/* How a kernel that is launched early begins; see programmatic_launch.py. EARLY: 0 in its turn, 1 on, 2 late, 3
 * broken. */
#if !EARLY
#define EARLY_LET_GO()
#define EARLY_WAIT()
#define EARLY_LINGER()
#else
#define EARLY_LET_GO() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define EARLY_WAIT_() asm volatile("griddepcontrol.wait;" ::: "memory")
#if EARLY == 1
#define EARLY_WAIT() EARLY_WAIT_()
#elif EARLY == 2
#define EARLY_WAIT() do { EARLY_WAIT_(); early_sleep_(); } while (0)
#else
#define EARLY_WAIT() early_sleep_()
#endif
/* For lanes that go on when others of their group have let the successor in. */
#if EARLY == 1
#define EARLY_LINGER()
#else
#define EARLY_LINGER() early_sleep_()
#endif
#define EARLY_START() EARLY_LET_GO(); EARLY_WAIT()

/* Up to 16 microseconds, different for each group and each time. */
static __device__ inline void early_sleep_() {
  unsigned now;
  asm volatile("mov.u32 %0, %clock;" : "=r"(now));
  __nanosleep((now * 2654435761u + blockIdx.x * 40503u) >> 18);
}
#endif
