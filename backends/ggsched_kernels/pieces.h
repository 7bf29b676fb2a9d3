/* Pieces of 16 bytes of weights that are not stored in blocks. */
#if W_NBYTES > 0
#define ELEMS_PER_CHUNK (16 / W_NBYTES)
#if defined(W_F32)
#define PER_WORD 1
#define UNPACKED(word, j) FLOAT_OF_BITS(word)
#elif defined(W_F16)
#define PER_WORD 2
#define UNPACKED(word, j) FLOAT_OF_HALF((j) ? (word) >> 16 : (word) & 0xffffu)
#else
#define PER_WORD 2
#define UNPACKED(word, j) FLOAT_OF_BITS((j) ? (word) & 0xffff0000u : (word) << 16)
#endif

FN void unpack(float *to, u4 v) {
  u32 words[4];
  words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  UNROLL for (int i = 0; i < ELEMS_PER_CHUNK; i++) to[i] = UNPACKED(words[i / PER_WORD], i % PER_WORD);
}
#endif
