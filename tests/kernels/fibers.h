/* What a kernel that is compiled for the host sees of the machine that runs its lanes. The machine (fibers.cpp,
 * gates.cpp) is compiled once; what has a body here is compiled with every kernel. */
#define __global__
#define __device__
#define __align__(n)
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900
#define ASK_FOR(p) ((void)(p))
#if defined(W_BF16)
#define HALVES_ARE_BF16 1
#else
#define HALVES_ARE_BF16 0
#endif

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline unsigned __cvta_generic_to_shared(const void *) { return 0; }

struct Lane { int x; };
struct Place { int x, y, z; };
Lane lane_();
Place place_();
#define threadIdx lane_()
#define blockIdx place_()
#define gridDim grid_
unsigned char *local_();
unsigned char *stages_();
void __syncthreads();
void __syncwarp();
float exchange_(float x, int from);
void meet_some_(int lanes);
void cluster_arrive_();
void cluster_await_();
float4 get4_(const float4 *p, int group);
void put4_(float4 *p, int group, float4 x);
void put2_(float2 *p, int group, float2 x);

static inline float __shfl_xor_sync(unsigned, float x, int mask) { return exchange_(x, lane_().x % 32 ^ mask); }
static inline float __shfl_sync(unsigned, float x, int from, int width) {
  return exchange_(x, lane_().x % 32 / width * width + from % width);
}
static inline int bits_(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline float float_(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __shfl_sync(unsigned, int x, int from, int width) { return bits_(__shfl_sync(0, float_(x), from, width)); }
static inline unsigned __shfl_xor_sync(unsigned, unsigned x, int mask) { return bits_(__shfl_xor_sync(0, float_(x), mask)); }
int __any_sync(unsigned, int yes);

void host_gate_open_(void *gate, int lanes);
void host_gate_arrive_(void *gate, int nbytes);
void host_gate_await_(const void *gate, int phase);
void host_copy_span_(unsigned char *to, const unsigned char *from, int nbytes, const void *gate);

int __dp4a(int a, int b, int sum);
unsigned __byte_perm(unsigned a, unsigned b, unsigned which);
unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift);
unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift);
void host_multiply_add_(int *sum, const unsigned *a, const unsigned *b);
void host_multiply_halves_(float *sum, const unsigned *a, const unsigned *b, bool are_bf16);
void host_multiply_group_(float *sum, const unsigned *a, const unsigned char *b, bool adds, bool are_bf16);
void host_multiply_turned_(float *sum, const unsigned *a, const unsigned char *b, bool adds, bool are_bf16);
void host_multiply_tf32_(float *sum, const unsigned *a, const unsigned *b);
unsigned host_tf32_of_(float x);
void host_load_matrices_(unsigned *to, const unsigned char *p, bool is_turned);
unsigned host_pair_of_(float low, float high, bool are_bf16);
unsigned host_multiply_pairs_(unsigned a, unsigned b);
unsigned host_sub_halves_(unsigned a, unsigned b);
unsigned host_permuted_or_sign_(unsigned a, unsigned b, unsigned selector);

int run_gated_(int count, int y, int z, int lanes, int local_nbytes, void (*kernel)());
