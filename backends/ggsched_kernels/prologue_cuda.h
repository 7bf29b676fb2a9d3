/* Dialect: CUDA C++17 (nvcc or NVRTC). The counterpart of prologue_opencl.h.
 *
 * The host defines VW (4) and LANES (threads in a block, a power of two).
 */
#define KERNEL(name) extern "C" __global__ void KERNEL_BOUNDS name
#define KERNEL_BOUNDS /* of lanes; a source that needs more registers than its groups have says what they are */
#define FN static __device__ inline
#define GLOBAL
#define LOCAL __shared__
#define LOCAL_PTR
#define AWAIT_ALL(grid_barrier)
#define GRID_BARRIER 0
#define GROUPS(axis) ((int)((axis) == 0 ? gridDim.x : (axis) == 1 ? gridDim.y : gridDim.z))
#define GROUP(axis) ((int)((axis) == 0 ? blockIdx.x : (axis) == 1 ? blockIdx.y : blockIdx.z))
#define LANE ((int)threadIdx.x)
#define BARRIER() __syncthreads()
#define UNROLL _Pragma("unroll")

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef uint4 u4;
typedef float4 f4;
#define LOAD16(p) (*(const u4 *)(p))

template <class T>
struct Vec {
  T v[VW];
};
typedef Vec<float> vf;
typedef Vec<i32> vi;
typedef Vec<u32> vu;

#define EACH_LANE_ for (int i_ = 0; i_ < VW; i_++)
#define VECTOR_OPERATOR_(op)                                                     \
  template <class T>                                                             \
  FN Vec<T> operator op(Vec<T> a, Vec<T> b) {                                    \
    UNROLL EACH_LANE_ a.v[i_] = a.v[i_] op b.v[i_];                              \
    return a;                                                                    \
  }                                                                              \
  template <class T, class S>                                                    \
  FN Vec<T> operator op(Vec<T> a, S b) {                                         \
    UNROLL EACH_LANE_ a.v[i_] = a.v[i_] op (T)b;                                 \
    return a;                                                                    \
  }
VECTOR_OPERATOR_(+)
VECTOR_OPERATOR_(-)
VECTOR_OPERATOR_(*)
VECTOR_OPERATOR_(/)
VECTOR_OPERATOR_(&)
VECTOR_OPERATOR_(|)
VECTOR_OPERATOR_(<<)
VECTOR_OPERATOR_(>>)
#define VECTOR_COMPARISON_(op)                                                   \
  template <class T>                                                             \
  FN vi operator op(Vec<T> a, Vec<T> b) {                                        \
    vi r;                                                                        \
    UNROLL EACH_LANE_ r.v[i_] = a.v[i_] op b.v[i_] ? -1 : 0;                     \
    return r;                                                                    \
  }                                                                              \
  template <class T, class S>                                                    \
  FN vi operator op(Vec<T> a, S b) {                                             \
    vi r;                                                                        \
    UNROLL EACH_LANE_ r.v[i_] = a.v[i_] op (T)b ? -1 : 0;                        \
    return r;                                                                    \
  }
VECTOR_COMPARISON_(<)
VECTOR_COMPARISON_(>)
VECTOR_COMPARISON_(>=)
VECTOR_COMPARISON_(!=)
template <class T>
FN Vec<T> operator-(Vec<T> a) {
  UNROLL EACH_LANE_ a.v[i_] = -a.v[i_];
  return a;
}
template <class T>
FN Vec<T> &operator+=(Vec<T> &a, Vec<T> b) {
  return a = a + b;
}
template <class T>
FN Vec<T> VSELECT(vi condition, Vec<T> yes, Vec<T> no) {
  UNROLL EACH_LANE_ no.v[i_] = condition.v[i_] ? yes.v[i_] : no.v[i_];
  return no;
}
template <class T>
FN T VSELECT(bool condition, T yes, T no) {
  return condition ? yes : no;
}
template <class To, class From>
FN To lanes_(const From *p) {
  To r;
  UNROLL EACH_LANE_ r.v[i_] = p[i_];
  return r;
}
#define VITEM(a, i) ((a).v[i])
FN vf VSPLAT(float x) {
  vf r;
  UNROLL EACH_LANE_ r.v[i_] = x;
  return r;
}
FN vi VSPLAT_INT(i32 x) {
  vi r;
  UNROLL EACH_LANE_ r.v[i_] = x;
  return r;
}
FN vi viota_() {
  vi r;
  UNROLL EACH_LANE_ r.v[i_] = i_;
  return r;
}
#define VIOTA viota_()
/* Views may start at any element, so a 16-byte access depends on the address. */
FN vf vload_(const float *p) {
  if (VW == 4 && ((u64)p & 15) == 0) {
    float4 f = *(const float4 *)p;
    vf r;
    r.v[0] = f.x, r.v[1] = f.y, r.v[2] = f.z, r.v[3] = f.w;
    return r;
  }
  return lanes_<vf>(p);
}
FN void vstore_(vf a, float *p) {
  if (VW == 4 && ((u64)p & 15) == 0) {
    *(float4 *)p = make_float4(a.v[0], a.v[1], a.v[2], a.v[3]);
    return;
  }
  UNROLL EACH_LANE_ p[i_] = a.v[i_];
}
FN void vstore_u16_(vu a, u16 *p) { UNROLL EACH_LANE_ p[i_] = (u16)a.v[i_]; }
FN vf vfloat_of_bits_(vu a) {
  vf r;
  UNROLL EACH_LANE_ r.v[i_] = __uint_as_float(a.v[i_]);
  return r;
}
FN vu vbits_of_float_(vf a) {
  vu r;
  UNROLL EACH_LANE_ r.v[i_] = __float_as_uint(a.v[i_]);
  return r;
}
#define VLOAD(p) vload_((const float *)(p))
#define VLOAD_ALIGNED(p) VLOAD(p)
#define VLOAD_LOCAL(p) vload_((const float *)(p))
#define VSTORE(v, p) vstore_((v), (float *)(p))
#define VSTORE_LOCAL(v, p) vstore_((v), (float *)(p))
#define VLOAD_I8(p) lanes_<vf>((const i8 *)(p))
#define VLOAD_U8(p) lanes_<vi>((const u8 *)(p))
#define VLOAD_U16(p) lanes_<vu>((const u16 *)(p))
#define VSTORE_U16(v, p) vstore_u16_((v), (u16 *)(p))
#define VFLOAT_OF_INT(a) lanes_<vf>((a).v)
#define VFLOAT_OF_BITS(a) vfloat_of_bits_(a)
#define VBITS_OF_FLOAT(a) vbits_of_float_(a)
#define VBITS_OF_INT(a) lanes_<vu>((a).v)
FN vf VEXP(vf a) {
  UNROLL EACH_LANE_ a.v[i_] = expf(a.v[i_]);
  return a;
}
FN vf VTANH(vf a) {
  UNROLL EACH_LANE_ a.v[i_] = tanhf(a.v[i_]);
  return a;
}
FN vf VLOG1P(vf a) {
  UNROLL EACH_LANE_ a.v[i_] = log1pf(a.v[i_]);
  return a;
}
FN float VSUM(vf a) {
  float r = a.v[0];
  UNROLL for (int i_ = 1; i_ < VW; i_++) r += a.v[i_];
  return r;
}
FN float VTOP(vf a) {
  float r = a.v[0];
  UNROLL for (int i_ = 1; i_ < VW; i_++) r = a.v[i_] > r ? a.v[i_] : r;
  return r;
}

/* Without cuda_fp16.h, which NVRTC does not find by itself. */
FN float float_of_half_(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
FN u16 half_of_float_(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
FN vf vload_half_(const u16 *p) {
  vf r;
  UNROLL EACH_LANE_ r.v[i_] = float_of_half_(p[i_]);
  return r;
}
FN void vstore_half_(vf a, u16 *p) { UNROLL EACH_LANE_ p[i_] = half_of_float_(a.v[i_]); }
#define FLOAT_OF_HALF(bits) float_of_half_((u16)(bits))
#define HALF_OF_FLOAT(x) half_of_float_(x)
#define VLOAD_HALF(p) vload_half_((const u16 *)(p))
#define VSTORE_HALF(v, p) vstore_half_((v), (u16 *)(p))

#define FLOAT_OF_BITS(u) __uint_as_float((u32)(u))
#define BITS_OF_FLOAT(x) __float_as_uint(x)
#define FMA(a, b, c) fmaf(a, b, c)
#define EXP(x) expf(x)
#define TANH(x) tanhf(x)
#define LOG1P(x) log1pf(x)
#define SQRT(x) sqrtf(x)
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#ifdef __CUDACC__
#define ASSUME_WITHIN(x, bound) __builtin_assume(fabsf(x) <= (bound))
#else
#define ASSUME_WITHIN(x, bound)
#endif
