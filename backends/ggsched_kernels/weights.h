/* Reading a packed type, chosen by one of W_F32, W_F16, W_BF16, W_Q8_0, W_Q4_0, W_MXFP4.
 *
 * WLOAD(row, k): elements k .. k+VW-1, as floats, of the row that starts at byte pointer `row`;
 *     k is a multiple of VW.
 * WITEM(row, k): element k.
 * W_NBYTES: bytes of an element; 0 for block types.
 */
#if defined(W_F32)
#define W_NBYTES 4
#define WLOAD(row, k) VLOAD((GLOBAL const float *)(row) + (k))
#define WITEM(row, k) (((GLOBAL const float *)(row))[k])
#elif defined(W_F16)
#define W_NBYTES 2
#define WLOAD(row, k) vfloat_of_half(VLOAD_U16((GLOBAL const u16 *)(row) + (k)))
#define WITEM(row, k) float_of_half(((GLOBAL const u16 *)(row))[k])
#elif defined(W_BF16)
#define W_NBYTES 2
#define WLOAD(row, k) VFLOAT_OF_BITS(VLOAD_U16((GLOBAL const u16 *)(row) + (k)) << 16)
#define WITEM(row, k) FLOAT_OF_BITS((u32)((GLOBAL const u16 *)(row))[k] << 16)
#else
#define W_NBYTES 0
#define WLOAD(row, k) wload_((row), (k))
#define WITEM(row, k) witem_((row), (k))
#endif

/* Blocks start at odd addresses, so a scale is put together from its bytes. */
FN float half_at(GLOBAL const u8 *p) { return float_of_half((u32)p[0] | (u32)p[1] << 8); }

#if defined(W_Q8_0)
/* 32 elements: f16 scale, 32 signed bytes. */
FN vf wload_(GLOBAL const u8 *row, int k) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * 34;
  return VLOAD_I8(block + 2 + k % 32) * half_at(block);
}
FN float witem_(GLOBAL const u8 *row, int k) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * 34;
  return half_at(block) * (float)((GLOBAL const i8 *)block)[2 + k % 32];
}
#elif defined(W_Q4_0)
/* 32 elements: f16 scale, 16 bytes; elements 0..15 in the low halves, 16..31 in the high ones. */
FN vf wload_(GLOBAL const u8 *row, int k) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * 18;
  vi nibbles = (VLOAD_U8(block + 2 + k % 16) >> (k & 16) / 4) & 15;
  return VFLOAT_OF_INT(nibbles - 8) * half_at(block);
}
FN float witem_(GLOBAL const u8 *row, int k) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * 18;
  int nibble = (block[2 + k % 16] >> (k & 16) / 4) & 15;
  return half_at(block) * (float)(nibble - 8);
}
#elif defined(W_MXFP4)
/* 32 elements: an exponent byte e for the scale 2^(e-127), 16 bytes as in q4_0 of which each half
 * is an e2m1 number. Twice its magnitude is a small integer (0 1 2 3 4 6 8 12), so take half the
 * scale. */
FN float half_scale(int e) { return FLOAT_OF_BITS(e < 2 ? 0x00200000u << e : (u32)(e - 1) << 23); }
FN vf wload_(GLOBAL const u8 *row, int k) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * 17;
  vi nibbles = VLOAD_U8(block + 1 + k % 16) >> (k & 16) / 4;
  vi v = nibbles & 7;
  vi large = ((v & 1) + 2) << (((v >> 1) + 3) & 3);
  vi twice = VSELECT(v < 2, v, large);
  return VFLOAT_OF_INT(VSELECT((nibbles & 8) != 0, -twice, twice)) * half_scale(block[0]);
}
FN float witem_(GLOBAL const u8 *row, int k) {
  GLOBAL const u8 *block = row + (i64)(k / 32) * 17;
  int nibble = block[1 + k % 16] >> (k & 16) / 4;
  int v = nibble & 7;
  int twice = v < 2 ? v : ((v & 1) + 2) << ((v >> 1) - 1);
  return (float)((nibble & 8) ? -twice : twice) * half_scale(block[0]);
}
#endif
