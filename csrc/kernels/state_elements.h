// state_elements: the elements of a key/value state as the kernels see them.
#pragma once
#include "core/state.h"
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

// Calls f.operator()<T>() for the type of the state's elements.
template <class F>
WEFT_INLINE void by_element(const KvState& state, F f) {
  switch (state.dtype) {
    case DType::f16: return f.template operator()<Half>();
    case DType::bf16: return f.template operator()<Bf16>();
    case DType::i8: return f.template operator()<int8_t>();
    default: return f.template operator()<float>();
  }
}

}  // namespace weft::ISA
