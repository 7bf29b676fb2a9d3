/* Dialect: OpenCL C 1.2. The kernels are written in the macros below and in nothing else.
 *
 * The host defines VW (floats in a vector: 8 for processors, 4 for GPUs) and LANES (work-items in
 * a group, a power of two; 1 for processors, where one item does a whole group's work).
 */
#if LANES > 1 /* so that the compiler knows how many registers there are for each */
#define KERNEL(name) __kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void name
#else
#define KERNEL(name) __kernel void name
#endif
#define KERNEL_BOUNDS /* see prologue_cuda.h */
/* PoCL keeps ids of items and groups in variables that its threads share, and knows better in kernels alone: a function that
 * is not inlined reads those of another group. */
#define FN static inline __attribute__((always_inline))
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_PTR __local
#if MERGED /* the kernel is a function, see merged.py */
#define GROUP(axis) (group_[axis])
#define GROUPS(axis) (group_[3 + (axis)])
#define AWAIT_ALL(grid_barrier) await_(grid_barrier) /* what earlier steps write is there from here on */
#define GRID_BARRIER barrier_
#else
#define GROUP(axis) ((int)get_group_id(axis))
#define GROUPS(axis) ((int)get_num_groups(axis))
#define AWAIT_ALL(grid_barrier)
#define GRID_BARRIER 0
#endif
#define LANE ((int)get_local_id(0))
#if LANES > 1
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
#define BARRIER()
#endif
#define UNROLL __attribute__((opencl_unroll_hint))

typedef char i8;
typedef uchar u8;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef uint4 u4;
typedef float4 f4;
#define LOAD16(p) (*(GLOBAL const u4 *)(p))

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
typedef CAT(float, VW) vf;
typedef CAT(int, VW) vi;
typedef CAT(uint, VW) vu;
typedef CAT(char, VW) vi8;
typedef CAT(uchar, VW) vu8;
typedef CAT(ushort, VW) vu16;

/* PoCL does not inline vload, convert, min and their like, and a call inside a loop spills every
 * register. Compilers made of clang know unaligned vectors and conversions without calls. */
#ifdef __clang__
typedef vf vf_any __attribute__((aligned(4)));
typedef vi8 vi8_any __attribute__((aligned(1)));
typedef vu8 vu8_any __attribute__((aligned(1)));
typedef vu16 vu16_any __attribute__((aligned(1)));
#define VLOAD(p) (*(GLOBAL const vf_any *)(p))
#define VLOAD_LOCAL(p) (*(LOCAL_PTR const vf_any *)(p))
#define VSTORE(v, p) (*(GLOBAL vf_any *)(p) = (v))
#define VSTORE_LOCAL(v, p) (*(LOCAL_PTR vf_any *)(p) = (v))
#define VLOAD_I8(p) __builtin_convertvector(*(GLOBAL const vi8_any *)(p), vf)
#define VLOAD_U8(p) __builtin_convertvector(*(GLOBAL const vu8_any *)(p), vi)
#define VLOAD_U16(p) __builtin_convertvector(*(GLOBAL const vu16_any *)(p), vu)
#define VSTORE_U16(v, p) (*(GLOBAL vu16_any *)(p) = __builtin_convertvector((v), vu16))
#define VFLOAT_OF_INT(v) __builtin_convertvector((v), vf)
#if VW == 8
/* Sixteen bytes as they are, and half of them as integers. */
typedef uchar16 bytes_any __attribute__((aligned(1)));
#define LOAD_BYTES(p) (*(GLOBAL const bytes_any *)(p))
#define INTS_OF_BYTES(bytes, upper) __builtin_convertvector((upper) ? (bytes).hi : (bytes).lo, vi)
#if defined(__SSSE3__)
/* What four words, a table of sixteen signed bytes, have at the indices in bytes. */
typedef char table_bytes_ __attribute__((ext_vector_type(16)));
FN table_bytes_ looked_up_(uint4 table, uchar16 indices) {
  return __builtin_ia32_pshufb128((table_bytes_)as_char16(table), (table_bytes_)as_char16(indices));
}
#define LOOKED_UP(a, b, c, d, indices) looked_up_((uint4)(a, b, c, d), (indices))
#endif
#endif
#else
#define VLOAD(p) CAT(vload, VW)(0, (GLOBAL const float *)(p))
#define VLOAD_LOCAL(p) CAT(vload, VW)(0, (LOCAL_PTR const float *)(p))
#define VSTORE(v, p) CAT(vstore, VW)((v), 0, (GLOBAL float *)(p))
#define VSTORE_LOCAL(v, p) CAT(vstore, VW)((v), 0, (LOCAL_PTR float *)(p))
#define VLOAD_I8(p) CAT(convert_float, VW)(CAT(vload, VW)(0, (GLOBAL const char *)(p)))
#define VLOAD_U8(p) CAT(convert_int, VW)(CAT(vload, VW)(0, (GLOBAL const uchar *)(p)))
#define VLOAD_U16(p) CAT(convert_uint, VW)(CAT(vload, VW)(0, (GLOBAL const ushort *)(p)))
#define VSTORE_U16(v, p) CAT(vstore, VW)(CAT(convert_ushort, VW)(v), 0, (GLOBAL ushort *)(p))
#define VFLOAT_OF_INT(v) CAT(convert_float, VW)(v)
#endif

/* What processors have an instruction for; elsewhere common.h and weights.h do without. */
#if defined(__clang__) && defined(__F16C__) && defined(__AVX2__) && VW == 8
typedef short half_bits_ __attribute__((ext_vector_type(8)));
typedef half_bits_ half_bits_any_ __attribute__((aligned(1)));
FN vf vload_half_(GLOBAL const half_bits_any_ *p) { return __builtin_ia32_vcvtph2ps256(*p); }
FN float float_of_half_(short bits) {
  vf v = __builtin_ia32_vcvtph2ps256((half_bits_)(bits));
  return v.s0;
}
FN vf vlookup8_(vf table, vi index) { return __builtin_ia32_permvarsf256(table, index); }
#define VLOAD_HALF(p) vload_half_((GLOBAL const half_bits_any_ *)(p))
#define VSTORE_HALF(v, p) (*(GLOBAL half_bits_any_ *)(p) = __builtin_ia32_vcvtps2ph256((v), 0))
#define FLOAT_OF_HALF(bits) float_of_half_((short)(bits))
#define VLOOKUP8(index, a, b, c, d, e, f, g, h) vlookup8_((vf)(a, b, c, d, e, f, g, h), (index))
#endif

/* Of floats that begin at a multiple of a vector. */
#define VLOAD_ALIGNED(p) (*(GLOBAL const vf *)(p))
#define VSPLAT(x) ((vf)(x))
#define VITEM(v, i) ((v).s##i)
#define VSPLAT_INT(x) ((vi)(x))
#if VW == 4
#define VIOTA ((vi)(0, 1, 2, 3))
#else
#define VIOTA ((vi)(0, 1, 2, 3, 4, 5, 6, 7))
#endif
#define VFLOAT_OF_BITS(u) CAT(as_float, VW)(u)
#define VBITS_OF_FLOAT(v) CAT(as_uint, VW)(v)
#define VBITS_OF_INT(v) CAT(as_uint, VW)(v)
#define VSELECT(condition, yes, no) ((condition) ? (yes) : (no))
#define VEXP(v) exp(v)
#define VTANH(v) tanh(v)
#define VLOG1P(v) log1p(v)

#define FLOAT_OF_BITS(u) as_float((uint)(u))
#define BITS_OF_FLOAT(x) as_uint(x)
#define FMA(a, b, c) fma(a, b, c)
#define EXP(x) exp(x)
#define TANH(x) tanh(x)
#define LOG1P(x) log1p(x)
#define SQRT(x) sqrt(x)
#define SIN(x) sin(x)
#define COS(x) cos(x)
#define ASSUME_WITHIN(x, bound)

#define VMAX_(a, b) ((a) > (b) ? (a) : (b))
FN float vsum2_(float2 v) { return v.x + v.y; }
FN float vsum4_(float4 v) { return vsum2_(v.lo + v.hi); }
FN float vmax2_(float2 v) { return VMAX_(v.x, v.y); }
FN float vmax4_(float4 v) { return vmax2_(VMAX_(v.lo, v.hi)); }
#if VW == 4
#define VSUM(v) vsum4_(v)
#define VTOP(v) vmax4_(v)
#else
FN float vsum8_(float8 v) { return vsum4_(v.lo + v.hi); }
FN float vmax8_(float8 v) { return vmax4_(VMAX_(v.lo, v.hi)); }
#define VSUM(v) vsum8_(v)
#define VTOP(v) vmax8_(v)
#endif
