// token_codes: a row of floats as int8 codes with one scale, as quantise_tokens writes and matmul_i8 reads it.
#pragma once
#include "kernels/matmul_ints.h"

namespace weft::ISA {

constexpr int64_t kHeader = 3;     // floats beside a row's codes: its scale, and column and excess of its largest element
constexpr float kReach = 5.0f;   // the largest element may be this many times the largest value of a byte
constexpr int kMaxExcess = 508;  // the largest excess over a byte

// The largest magnitude of a row and the largest of all others, lane by lane of 64 columns at a time.
struct Peaks {
  f32x16 first = zero(), second = zero();
#if defined(WEFT_ISA_avx512)
  __m512i group = _mm512_setzero_si512();  // of 64 columns, where the first lies
#endif

  WEFT_INLINE void add(int64_t k, f32x16 a, f32x16 b, f32x16 c, f32x16 d) {
    a = abs(a), b = abs(b), c = abs(c), d = abs(d);
    const f32x16 high = max(a, b), other_high = max(c, d), low = max(min(a, b), min(c, d));
    const f32x16 top = max(high, other_high), next = max(low, min(high, other_high));
#if defined(WEFT_ISA_avx512)
    const __m512i now = _mm512_set1_epi32(static_cast<int>(k));
    group = _mm512_mask_mov_epi32(group, _mm512_cmp_ps_mask(top.v, first.v, _CMP_GT_OQ), now);
#else
    (void)k;
#endif
    second = max(max(second, next), min(first, top));
    first = max(first, top);
  }
  WEFT_INLINE float largest() const { return max_lane(first); }
  // The second largest; equal to `top`, the largest, where that occurs twice.
  WEFT_INLINE float next(float top) const {
    if (sum(where_less(first, splat(top), zero(), splat(1.0f))) > 1) return top;
    return max_lane(where_less(first, splat(top), first, second));
  }
};

WEFT_INLINE Peaks peaks_of(const float* x, int64_t depth) {
  Peaks peaks;
  for (int64_t k = 0; k < depth; k += 64)
    peaks.add(k, load(x + k), load(x + k + 16), load(x + k + 32), load(x + k + 48));
  return peaks;
}

// The only column of x that has the magnitude `top`.
#if defined(WEFT_ISA_avx512)
static int64_t column_of(const Peaks& peaks, float top, const float* x, int64_t) {  // nothing to mispredict
  alignas(64) int32_t groups[16];
  _mm512_store_si512(groups, peaks.group);
  const int lane = __builtin_ctz(_mm512_cmp_ps_mask(peaks.first.v, splat(top).v, _CMP_EQ_OQ) | 1u << 15);
  int column = groups[lane] + lane;
  for (int i = column + 16; i < groups[lane] + 64; i += 16) column = __builtin_fabsf(x[i]) == top ? i : column;
  return column;
}
#else
static int64_t column_of(const Peaks& peaks, float top, const float* x, int64_t depth) {
  alignas(64) float lanes[16];
  store(lanes, peaks.first);
  int64_t k = 0;
  while (k < 15 && lanes[k] != top) ++k;
  while (k < depth - 16 && __builtin_fabsf(x[k]) != top) k += 16;
  return k;
}
#endif

// 64 codes: x * scale to nearest even, at most 127 either way.
#if defined(WEFT_ISA_avx512)
WEFT_INLINE void store_codes(int8_t* to, const float* x, f32x16 scale) {
  __m512i whole[4];
  for (int i = 0; i < 4; ++i) whole[i] = _mm512_cvtps_epi32((load(x + 16 * i) * scale).v);
  // Packing works within quarters of a register: afterwards each has four columns of every quarter.
  const __m512i low = _mm512_packs_epi32(whole[0], whole[1]), high = _mm512_packs_epi32(whole[2], whole[3]);
  const __m512i bytes = _mm512_max_epi8(_mm512_packs_epi16(low, high), _mm512_set1_epi8(-127));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
}
#elif defined(WEFT_ISA_neon)
// Added to 1.5 * 2^23 a number is rounded to nearest even, and its lowest byte is that of the whole number: conversions
// take two cycles for four. Only the largest element may be beyond 127, and the scale's sign makes that one positive.
WEFT_INLINE void store_codes(int8_t* to, const float* x, f32x16 scale) {
  const auto whole = [&](int64_t k) {
    const float32x4_t value = vminq_f32(vmulq_f32(vld1q_f32(x + k), scale.v[0]), vdupq_n_f32(127.0f));
    return vreinterpretq_s16_f32(vaddq_f32(value, vdupq_n_f32(12582912.0f)));
  };
  for (int64_t k = 0; k < 64; k += 16) {
    const int16x8_t low = vuzp1q_s16(whole(k), whole(k + 4)), high = vuzp1q_s16(whole(k + 8), whole(k + 12));
    vst1q_s8(to + k, vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high)));
  }
}
#else
WEFT_INLINE void store_codes(int8_t* to, const float* x, f32x16 scale) {
  for (int i = 0; i < 64; i += 16)
    store_i8(to + i, min(max(round(load(x + i) * scale), splat(-127.0f)), splat(127.0f)));
}
#endif

// x [depth], whose peaks are known; depth is a multiple of 64. The sign of the scale makes the largest code positive.
static void write_codes(const float* x, int64_t depth, const Peaks& peaks, int8_t* codes, float* header) {
  const float top = peaks.largest(), next = peaks.next(top), least = top / kReach;
  const float span = next > least ? next : least, steps = 127.0f / span;
  const bool usable = steps - steps == 0;  // neither all zeros nor so small that the factor overflows
  const bool wide = usable && top > span;
  const int64_t column = wide ? column_of(peaks, top, x, depth) : 0;
  const float sign = wide && x[column] < 0 ? -1.0f : 1.0f;
  const f32x16 scale = splat(usable ? sign * steps : 0.0f);
  for (int64_t k = 0; k < depth; k += 64) store_codes(codes + k, x + k, scale);
  const float full = wide ? max_lane(round(splat(top * steps))) : 0.0f;
  header[0] = usable ? sign * (span / 127.0f) : 0.0f;
  header[1] = static_cast<float>(column);
  header[2] = full > 127.0f ? (full < 127 + kMaxExcess ? full - 127.0f : kMaxExcess) : 0.0f;
}

}  // namespace weft::ISA
