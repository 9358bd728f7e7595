// state_elements: the elements of a key/value state as the kernels see them.
#pragma once
#include "core/state.h"
#include "kernels/hadamard_row.h"
#include "simd/simd.h"

namespace weft::ISA {

struct Half {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

// 16 bytes as floats.
#if defined(WEFT_ISA_avx512)
WEFT_INLINE f32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
#elif defined(WEFT_ISA_avx2)
WEFT_INLINE __m256 load8_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
WEFT_INLINE f32x16 load_i8(const int8_t* p) { return {load8_i8(p), load8_i8(p + 8)}; }
#elif defined(WEFT_ISA_neon)
WEFT_INLINE f32x16 load_i8(const int8_t* p) {
  const int16x8_t low = vmovl_s8(vld1_s8(p)), high = vmovl_s8(vld1_s8(p + 8));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
#else
WEFT_INLINE f32x16 load_i8(const int8_t* p) {
  return lanes([=](int i) { return static_cast<float>(p[i]); });
}
#endif
WEFT_INLINE f32x16 load_i8_n(const int8_t* p, int64_t n) {
  alignas(16) int8_t part[16] = {};
  for (int64_t i = 0; i < n && i < 16; ++i) part[i] = p[i];
  return load_i8(part);
}

WEFT_INLINE f32x16 widen(const float* p) { return load(p); }
WEFT_INLINE f32x16 widen(const Half* p) { return load_f16(&p->bits); }
WEFT_INLINE f32x16 widen(const Bf16* p) { return load_bf16(&p->bits); }
WEFT_INLINE f32x16 widen(const int8_t* p) { return load_i8(p); }
WEFT_INLINE f32x16 widen_n(const float* p, int64_t n) { return load_n(p, n); }
WEFT_INLINE f32x16 widen_n(const Half* p, int64_t n) { return load_f16_n(&p->bits, n); }
WEFT_INLINE f32x16 widen_n(const Bf16* p, int64_t n) { return load_bf16_n(&p->bits, n); }
WEFT_INLINE f32x16 widen_n(const int8_t* p, int64_t n) { return load_i8_n(p, n); }

// The 16 levels that the codes of i4r stand for: Lloyd and Max's of the normal distribution, which rotated rows nearly have, as
// int8. Kernels expand codes to them, and go on as with i8.
alignas(16) static constexpr int8_t kLevels[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};

// 16 bytes as levels: the low halves to `low`, the high ones to `high`.
WEFT_INLINE void expand(int8_t* low, int8_t* high, const uint8_t* from) {
#if defined(WEFT_ISA_neon)
  const int8x16_t levels = vld1q_s8(kLevels);
  const uint8x16_t codes = vld1q_u8(from);
  vst1q_s8(low, vqtbl1q_s8(levels, vandq_u8(codes, vdupq_n_u8(15))));
  vst1q_s8(high, vqtbl1q_s8(levels, vshrq_n_u8(codes, 4)));
#elif defined(WEFT_ISA_avx2) || defined(WEFT_ISA_avx512)
  const __m128i levels = _mm_load_si128(reinterpret_cast<const __m128i*>(kLevels)), half = _mm_set1_epi8(15);
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m128i upper = _mm_and_si128(_mm_srli_epi16(codes, 4), half);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm_shuffle_epi8(levels, _mm_and_si128(codes, half)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm_shuffle_epi8(levels, upper));
#else
  for (int i = 0; i < 16; ++i) low[i] = kLevels[from[i] & 15], high[i] = kLevels[from[i] >> 4];
#endif
}

// A block's keys as int8 [dim up to 2][kPage].
WEFT_INLINE void expand_keys(int8_t* to, const uint8_t* from, int64_t dim) {
  for (int64_t c = 0; c < dim; c += 2, to += 2 * kPage, from += kPage)
    for (int64_t i = 0; i < kPage; i += 16) expand(to + i, to + kPage + i, from + i);
}
// `count` of its values as int8 [count][dim].
WEFT_INLINE void expand_values(int8_t* to, const uint8_t* from, int64_t dim, int64_t count) {
  for (int64_t i = 0; i < count; ++i, to += dim) {
    int64_t c = 0;
    for (; c + 32 <= dim; c += 32, from += 16) expand(to + c, to + c + 16, from);
    if (c == dim) continue;
    int8_t last[32];
    expand(last, last + 16, from);
    for (int64_t j = 0; c + j < dim; ++j) to[c + j] = last[j];
    from += 16;
  }
}

// How rows are rotated, and queries and results with them: Walsh's matrix, as large as divides a head, in as many
// parts as there are.
WEFT_INLINE HadamardShape rotation(int64_t dim) { return {dim / (dim & -dim), dim & -dim, 1}; }

// Whether elements are codes, to be multiplied by their token's scale.
template <class T>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<int8_t> = true;

// One head of a page, of state.key or state.value. scales [kPage] are those of codes.
template <class T>
struct StateBlock {
  T* elements;
  float* scales;
};
template <class T>
WEFT_INLINE StateBlock<T> block_of(const KvState& state, std::byte* half, int64_t page, int64_t head) {
  std::byte* block = half + page * state.stride + head * state.block_bytes;
  return {reinterpret_cast<T*>(block), reinterpret_cast<float*>(block + state.element_bytes)};
}

// Calls f.operator()<T>() for the type of the state's elements, int8_t for those that are expanded to it.
template <class F>
WEFT_INLINE void by_element(const KvState& state, F f) {
  switch (state.dtype) {
    case DType::f16: return f.template operator()<Half>();
    case DType::bf16: return f.template operator()<Bf16>();
    case DType::i4r:
    case DType::i8r:
    case DType::i8: return f.template operator()<int8_t>();
    default: return f.template operator()<float>();
  }
}

}  // namespace weft::ISA
