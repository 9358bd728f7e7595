// bytes: the building blocks of ints.cpp, 16 bytes at a time; the tail through a copy that ends in zeros.
#pragma once
#include <arm_neon.h>

namespace weft::ISA {

WEFT_INLINE uint8x16_t load16_n(const uint8_t* p, int64_t n) {
  uint8_t part[16] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return vld1q_u8(part);
}

// f(a, b, sum) for every 16 bytes; zeros at the end add nothing.
template <class F>
WEFT_INLINE int32_t over_bytes(const uint8_t* a, const uint8_t* b, int64_t n, F f) {
  int32x4_t even = vdupq_n_s32(0), odd = even;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    even = f(vld1q_u8(a + i), vld1q_u8(b + i), even);
    odd = f(vld1q_u8(a + i + 16), vld1q_u8(b + i + 16), odd);
  }
  if (i + 16 <= n) even = f(vld1q_u8(a + i), vld1q_u8(b + i), even), i += 16;
  if (i < n) odd = f(load16_n(a + i, n - i), load16_n(b + i, n - i), odd);
  return vaddvq_s32(vaddq_s32(even, odd));
}

// s and the sums of four neighbours each, of bytes that are not negative.
WEFT_INLINE int32x4_t add_bytes(int32x4_t s, uint8x16_t v) {
  return vreinterpretq_s32_u32(vpadalq_u16(vreinterpretq_u32_s32(s), vpaddlq_u8(v)));
}

// The correction of dot_bytes for a query: none at this level.
WEFT_INLINE int32_t dot_excess(const uint8_t*, int64_t) { return 0; }

WEFT_INLINE int32_t dot_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  return over_bytes(a, b, n, [](uint8x16_t left, uint8x16_t right, int32x4_t s) WEFT_LAMBDA {
    const int8x16_t x = vreinterpretq_s8_u8(left), y = vreinterpretq_s8_u8(right);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(s, x, y);
#else
    s = vpadalq_s16(s, vmull_s8(vget_low_s8(x), vget_low_s8(y)));
    return vpadalq_s16(s, vmull_s8(vget_high_s8(x), vget_high_s8(y)));
#endif
  });
}

#ifdef __ARM_FEATURE_DOTPROD
// The same of four rows, which share what is loaded of the query. Rows are whole sixteens.
WEFT_INLINE void dot_bytes_of_four(const uint8_t* rows, int64_t stride, const uint8_t* q, int64_t n, int32_t* out) {
  int32x4_t even[4], odd[4];
  _Pragma("GCC unroll 4") for (int r = 0; r < 4; ++r) even[r] = odd[r] = vdupq_n_s32(0);
  const auto add = [&](int32x4_t (&sum)[4], int64_t i) WEFT_LAMBDA {
    const int8x16_t y = vreinterpretq_s8_u8(vld1q_u8(q + i));
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; ++r)
      sum[r] = vdotq_s32(sum[r], vreinterpretq_s8_u8(vld1q_u8(rows + r * stride + i)), y);
  };
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) add(even, i), add(odd, i + 16);
  if (i < n) add(even, i);
  _Pragma("GCC unroll 4") for (int r = 0; r < 4; ++r) even[r] = vaddq_s32(even[r], odd[r]);
  vst1q_s32(out, vpaddq_s32(vpaddq_s32(even[0], even[1]), vpaddq_s32(even[2], even[3])));
}
#endif

WEFT_INLINE int32_t apart_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  return over_bytes(a, b, n, [](uint8x16_t x, uint8x16_t y, int32x4_t s) WEFT_LAMBDA {
    return add_bytes(s, vreinterpretq_u8_s8(vabdq_s8(vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(y))));
  });
}

WEFT_INLINE int32_t dot_nibbles(const uint8_t* a, const uint8_t* b, int64_t n) {
  return over_bytes(a, b, n, [](uint8x16_t x, uint8x16_t y, int32x4_t s) WEFT_LAMBDA {
    const uint8x16_t mask = vdupq_n_u8(15);
    const uint8x16_t low = vmulq_u8(vandq_u8(x, mask), vandq_u8(y, mask));  // at most 225: fits a byte
    const uint8x16_t high = vmulq_u8(vshrq_n_u8(x, 4), vshrq_n_u8(y, 4));
    return add_bytes(add_bytes(s, low), high);
  });
}

WEFT_INLINE int32_t differing_bits(const uint8_t* a, const uint8_t* b, int64_t n) {
  return over_bytes(a, b, n, [](uint8x16_t x, uint8x16_t y, int32x4_t s) WEFT_LAMBDA {
    return add_bytes(s, vcntq_u8(veorq_u8(x, y)));
  });
}

// The same of four rows, whose counts are added up side by side. Rows are whole sixteens, so few that sums fit a byte.
WEFT_INLINE bool four_rows_fit(int64_t n) { return n % 16 == 0 && n <= 31 * 16; }
WEFT_INLINE void differing_bits_of_four(const uint8_t* rows, int64_t stride, const uint8_t* q, int64_t n, int32_t* out) {
  uint8x16_t sum[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
  for (int64_t i = 0; i < n; i += 16) {
    const uint8x16_t y = vld1q_u8(q + i);
    _Pragma("GCC unroll 4") for (int r = 0; r < 4; ++r)
      sum[r] = vaddq_u8(sum[r], vcntq_u8(veorq_u8(vld1q_u8(rows + r * stride + i), y)));
  }
  const uint16x8_t low = vpaddq_u16(vpaddlq_u8(sum[0]), vpaddlq_u8(sum[1]));
  const uint16x8_t high = vpaddq_u16(vpaddlq_u8(sum[2]), vpaddlq_u8(sum[3]));
  vst1q_s32(out, vreinterpretq_s32_u32(vpaddlq_u16(vpaddq_u16(low, high))));
}

}  // namespace weft::ISA
