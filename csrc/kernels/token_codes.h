// token_codes: a row of floats as int8 codes with one scale, as quantise_tokens writes and matmul_i8 reads it.
#pragma once
#include "kernels/matmul_ints.h"

namespace weft::ISA {

constexpr int64_t kHead = 3;     // floats beside a row's codes: its scale, and column and excess of its largest element
constexpr float kReach = 5.0f;   // a byte's worth of the largest element, at most
constexpr int kMaxExcess = 508;  // what of it is above one byte's

// The largest magnitude of a row and the largest of all others, lane by lane.
struct Peaks {
  f32x16 first = zero(), second = zero();

  WEFT_INLINE void add(f32x16 x) {
    const f32x16 size = abs(x);
    second = max(second, min(first, size));
    first = max(first, size);
  }
  WEFT_INLINE float largest() const { return max_lane(first); }
  // The same as `top`, the largest, if that is there twice.
  WEFT_INLINE float next(float top) const {
    if (sum(where_less(first, splat(top), zero(), splat(1.0f))) > 1) return top;
    return max_lane(where_less(first, splat(top), first, second));
  }
};

// The only column of x that has the magnitude `top`.
static int64_t column_of(const Peaks& peaks, float top, const float* x, int64_t depth) {
  alignas(64) float lane[16];
  store(lane, peaks.first);
  int64_t k = 0;
  while (k < 15 && lane[k] != top) ++k;
  while (k < depth - 16 && __builtin_fabsf(x[k]) != top) k += 16;
  return k;
}

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
#else
WEFT_INLINE void store_codes(int8_t* to, const float* x, f32x16 scale) {
  for (int i = 0; i < 64; i += 16)
    store_i8(to + i, min(max(round(load(x + i) * scale), splat(-127.0f)), splat(127.0f)));
}
#endif

// x [depth], whose peaks are known; depth is a multiple of 64. The sign of the scale makes the largest code positive.
static void write_codes(const float* x, int64_t depth, const Peaks& peaks, int8_t* codes, float* head) {
  const float top = peaks.largest(), next = peaks.next(top), least = top / kReach;
  const float span = next > least ? next : least, steps = 127.0f / span;
  const bool usable = steps - steps == 0;  // not all zeros, nor so small that this overflows
  const bool wide = usable && top > span;
  const int64_t column = wide ? column_of(peaks, top, x, depth) : 0;
  const float sign = wide && x[column] < 0 ? -1.0f : 1.0f;
  const f32x16 scale = splat(usable ? sign * steps : 0.0f);
  for (int64_t k = 0; k < depth; k += 64) store_codes(codes + k, x + k, scale);
  const float full = wide ? max_lane(round(splat(top * steps))) : 0.0f;
  head[0] = usable ? sign * (span / 127.0f) : 0.0f;
  head[1] = static_cast<float>(column);
  head[2] = full > 127.0f ? (full < 127 + kMaxExcess ? full - 127.0f : kMaxExcess) : 0.0f;
}

}  // namespace weft::ISA
