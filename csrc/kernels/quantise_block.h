// quantise_block: floats to blocks of int8 with a scale each, for the kernels that write such rows. The floats come from a
// function of their index, 16 at a time, so that their producer need not store them:
//
//   quantise_blocks(out, count, [&](int64_t i) { return load(x + i); });
#pragma once
#include "kernels/matmul_a8.h"
#include "kernels/matmul_ints.h"
#include "kernels/rows.h"

namespace weft::ISA {

// Blocks of zeros, and of values so small that their scale overflows, are all zero.
WEFT_INLINE bool usable(float scale) { return scale - scale == 0; }

#if defined(WEFT_ISA_avx512)
// 64 codes in order, of values times their scales. Packing works within quarters of a register: afterwards each has four
// columns of every quarter.
WEFT_INLINE __m512i codes_of(f32x16 a, f32x16 b, f32x16 c, f32x16 d) {
  const __m512i low = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
  const __m512i high = _mm512_packs_epi32(_mm512_cvtps_epi32(c.v), _mm512_cvtps_epi32(d.v));
  const __m512i bytes = _mm512_max_epi8(_mm512_packs_epi16(low, high), _mm512_set1_epi8(-127));  // NaN too
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}

// Their sums by sixteens: the first four words.
WEFT_INLINE __m128i sums_of(__m512i codes) {
  const __m512i eights = _mm512_sad_epu8(_mm512_xor_si512(codes, _mm512_set1_epi8(-128)), _mm512_setzero_si512());
  const __m128i words = _mm512_cvtepi64_epi16(eights);
  return _mm_sub_epi16(_mm_hadd_epi16(words, words), _mm_set1_epi16(16 * 128));
}

// The largest lane of each of four vectors.
WEFT_INLINE __m128 largest_lanes(f32x16 a, f32x16 b, f32x16 c, f32x16 d) {
  const __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512 all = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Four blocks at once: one division for all, and stores of whole headers and codes.
template <class F>
WEFT_INLINE void quantise_four(A8<32>* out, F at) {
  f32x16 x[8], top[4];
  for (int i = 0; i < 8; ++i) x[i] = at(16 * i);
  for (int i = 0; i < 4; ++i) top[i] = max(abs(x[2 * i]), abs(x[2 * i + 1]));
  const __m128 largest = largest_lanes(top[0], top[1], top[2], top[3]);
  const __m128 full = _mm_set1_ps(127.0f), scale = _mm_div_ps(full, largest);
  const __mmask8 fits = _mm_cmp_ps_mask(_mm_sub_ps(scale, scale), _mm_setzero_ps(), _CMP_EQ_OQ);  // usable
  const __m512 scales = _mm512_castps128_ps512(_mm_maskz_mov_ps(fits, scale));
  __m512i codes[2];
  __m128i sums[2];
  for (int i = 0; i < 2; ++i) {
    const f32x16 first{_mm512_permutexvar_ps(_mm512_set1_epi32(2 * i), scales)};
    const f32x16 second{_mm512_permutexvar_ps(_mm512_set1_epi32(2 * i + 1), scales)};
    codes[i] = codes_of(x[4 * i] * first, x[4 * i + 1] * first, x[4 * i + 2] * second, x[4 * i + 3] * second);
    sums[i] = sums_of(codes[i]);
  }
  const __m128i d = _mm_castps_si128(_mm_maskz_div_ps(fits, largest, full)), both = _mm_unpacklo_epi64(sums[0], sums[1]);
  const __m128i headers[2] = {_mm_unpacklo_epi32(d, both), _mm_unpackhi_epi32(d, both)};
  for (int i = 0; i < 2; ++i) {
    A8<32>*first = out + 2 * i, *second = first + 1;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(first), headers[i]);
    _mm_storeh_pd(reinterpret_cast<double*>(second), _mm_castsi128_pd(headers[i]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(first->q), _mm512_castsi512_si256(codes[i]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(second->q), _mm512_extracti64x4_epi64(codes[i], 1));
  }
}
#endif

// Clamped both ways, so that not even a NaN or an infinite scale reaches the conversion out of range.
template <int block>
WEFT_INLINE void quantise_16(A8<block>& out, int i, f32x16 x, f32x16 scale) {
  out.sum[i / 16] = static_cast<int16_t>(store_i8(out.q + i, min(max(x * scale, splat(-127.0f)), splat(127.0f))));
}

template <class F>
WEFT_INLINE void quantise_block(A8<32>& out, F at) {
  const f32x16 a = at(0), b = at(16);
  const float largest = max_lane(max(abs(a), abs(b)));
  const float scale = 127.0f / largest;
  out.d = usable(scale) ? largest / 127.0f : 0.0f;
  const f32x16 by = splat(usable(scale) ? scale : 0.0f);
  quantise_16(out, 0, a, by);
  quantise_16(out, 16, b, by);
}

// The value of largest magnitude, with its sign; the first of them when both signs reach it.
WEFT_INLINE float extreme(const float* x) {
  f32x16 high = load(x), low = high;
  for (int i = 16; i < 256; i += 16) {
    high = max(high, load(x + i));
    low = min(low, load(x + i));
  }
  const float top = max_lane(high), bottom = -max_lane(zero() - low);
  if (top != -bottom) return top > -bottom ? top : bottom;
  int i = 0;
  while (i < 255 && x[i] != top && x[i] != bottom) ++i;
  return x[i];
}

template <class F>
WEFT_INLINE void quantise_block(A8<256>& out, F at) {
  alignas(64) float x[256];
  for (int i = 0; i < 256; i += 16) store(x + i, at(i));
  const float m = extreme(x);
  const float scale = -127.0f / m;
  out.d = usable(scale) ? m / -127.0f : 0.0f;
  const f32x16 by = splat(usable(scale) ? scale : 0.0f);
#if defined(WEFT_ISA_avx512)
  for (int i = 0; i < 256; i += 64) {
    const __m512i codes = codes_of(load(x + i) * by, load(x + i + 16) * by, load(x + i + 32) * by, load(x + i + 48) * by);
    _mm512_storeu_si512(out.q + i, codes);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out.sum + i / 16), sums_of(codes));
  }
#else
  for (int i = 0; i < 256; i += 16) quantise_16(out, i, load(x + i), by);
#endif
}

template <int block, class F>
WEFT_INLINE void quantise_blocks(A8<block>* out, int64_t count, F at) {
  int64_t i = 0;
#if defined(WEFT_ISA_avx512)
  if constexpr (block == 32)
    for (; i + 4 <= count; i += 4) quantise_four(out + i, [&](int64_t j) { return at(i * 32 + j); });
#endif
  for (; i < count; ++i) quantise_block(out[i], [&](int64_t j) { return at(i * block + j); });
}

// Calls f(out) with the rows of a call as the blocks that they are.
template <class F>
WEFT_INLINE void by_block(const Operand& rows, int64_t block, F f) {
  if (block == 32) f(rows.as<A8<32>>());
  else f(rows.as<A8<256>>());
}

// quantise_blocks for all of a call's rows, end to end: a task is a handful of blocks.
template <class F>
WEFT_INLINE void quantise_all(const Call& call, const Worker& worker, F at) {
  const int64_t block = call.integer("block"), size = call.out[0].size();
  by_block(call.out[0], block, [&](auto* out) {
    deal(worker, size / block, kGrain / block, [&](int64_t first, int64_t count) {
      quantise_blocks(out + first, count, [&](int64_t i) { return at(first * block + i); });
    });
  });
}

}  // namespace weft::ISA
