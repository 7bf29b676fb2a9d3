/* float from and to half, by the words of the processor; <immintrin.h> takes a second to read. */
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS /* <cmath> takes 0.1 s */
#include <math.h>
#include <string.h>
typedef short Halves8_ __attribute__((vector_size(16)));
typedef float Floats4_ __attribute__((vector_size(16)));
static inline float host_float_of_half_(unsigned short bits) {
  return __builtin_ia32_vcvtph2ps(Halves8_{(short)bits})[0];
}
static inline unsigned short host_half_of_float_(float x) {
  return __builtin_ia32_vcvtps2ph(Floats4_{x}, 0)[0];
}
