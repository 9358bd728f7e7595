// neon: f32x16 in four registers. Baseline AArch64 has all of it.
#pragma once
#include <arm_neon.h>

namespace weft::ISA {

struct f32x16 {
  float32x4_t v[4];
};

// A vector of type V whose quarter i is f(i).
template <class V, class F>
WEFT_INLINE V quarters(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

WEFT_INLINE float32x4_t load4_n(const float* p, int64_t n) {
  if (n >= 4) return vld1q_f32(p);
  float32x4_t a = vdupq_n_f32(0);
  if (n > 0) a = vld1q_lane_f32(p, a, 0);
  if (n > 1) a = vld1q_lane_f32(p + 1, a, 1);
  if (n > 2) a = vld1q_lane_f32(p + 2, a, 2);
  return a;
}
WEFT_INLINE void store4_n(float* p, float32x4_t a, int64_t n) {
  if (n >= 4) return vst1q_f32(p, a);
  if (n > 0) vst1q_lane_f32(p, a, 0);
  if (n > 1) vst1q_lane_f32(p + 1, a, 1);
  if (n > 2) vst1q_lane_f32(p + 2, a, 2);
}

WEFT_INLINE f32x16 splat(float x) {
  return quarters<f32x16>([=](int) { return vdupq_n_f32(x); });
}
WEFT_INLINE f32x16 zero() { return splat(0.0f); }
WEFT_INLINE f32x16 load(const float* p) {
  return quarters<f32x16>([=](int i) { return vld1q_f32(p + 4 * i); });
}
WEFT_INLINE void store(float* p, f32x16 a) {
  vst1q_f32(p, a.v[0]), vst1q_f32(p + 4, a.v[1]), vst1q_f32(p + 8, a.v[2]), vst1q_f32(p + 12, a.v[3]);
}
WEFT_INLINE f32x16 load_n(const float* p, int64_t n) {
  return quarters<f32x16>([=](int i) { return load4_n(p + 4 * i, n - 4 * i); });
}
WEFT_INLINE void store_n(float* p, f32x16 a, int64_t n) {
  store4_n(p, a.v[0], n), store4_n(p + 4, a.v[1], n - 4), store4_n(p + 8, a.v[2], n - 8), store4_n(p + 12, a.v[3], n - 12);
}

WEFT_INLINE void copy_u16(uint16_t* to, const uint16_t* from, int64_t n) {
  for (int64_t i = 0; i < n && i < 16; ++i) to[i] = from[i];
}
WEFT_INLINE f32x16 load_f16(const uint16_t* p) {
  return quarters<f32x16>([=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
WEFT_INLINE f32x16 load_f16_n(const uint16_t* p, int64_t n) {
  uint16_t part[16] = {};
  copy_u16(part, p, n);
  return load_f16(part);
}
WEFT_INLINE void store4_f16(uint16_t* p, float32x4_t a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
WEFT_INLINE void store_f16(uint16_t* p, f32x16 a) {
  store4_f16(p, a.v[0]), store4_f16(p + 4, a.v[1]), store4_f16(p + 8, a.v[2]), store4_f16(p + 12, a.v[3]);
}
WEFT_INLINE void store_f16_n(uint16_t* p, f32x16 a, int64_t n) {
  uint16_t part[16];
  store_f16(part, a);
  copy_u16(p, part, n);
}
WEFT_INLINE f32x16 load_bf16(const uint16_t* p) {
  return quarters<f32x16>([=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
WEFT_INLINE f32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  uint16_t part[16] = {};
  copy_u16(part, p, n);
  return load_bf16(part);
}

// 16 pairs of bfloat16, the first and the second of each
WEFT_INLINE void load_bf16_pairs(const uint16_t* p, f32x16& first, f32x16& second) {
  const auto both = [=](int i) { return vreinterpretq_u32_u16(vld1q_u16(p + 8 * i)); };
  const uint32x4_t mask = vdupq_n_u32(0xFFFF0000);
  first = quarters<f32x16>([=](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(both(i), 16)); });
  second = quarters<f32x16>([=](int i) { return vreinterpretq_f32_u32(vandq_u32(both(i), mask)); });
}

WEFT_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return quarters<f32x16>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// x[lane] * b + c. A splat would take a turn of the unit that multiplies; this reads the lane on its way.
template <int lane>
WEFT_INLINE f32x16 fma_lane(float32x4_t x, f32x16 b, f32x16 c) {
  return quarters<f32x16>([&](int i) { return vfmaq_laneq_f32(c.v[i], b.v[i], x, lane); });
}
// The second operand when either is NaN, and of two zeros, as the x86 instructions do; this machine's own do not.
WEFT_INLINE float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
WEFT_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return max4(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
// The same where the second operand is a number and not zero, or the zero that max gives: the number, if there is one.
WEFT_INLINE f32x16 at_most(f32x16 a, float b) {
  return quarters<f32x16>([&](int i) { return vminnmq_f32(a.v[i], vdupq_n_f32(b)); });
}
WEFT_INLINE f32x16 at_least_zero(f32x16 a) {
  return quarters<f32x16>([&](int i) { return vmaxnmq_f32(a.v[i], vdupq_n_f32(0.0f)); });
}
WEFT_INLINE f32x16 sqrt(f32x16 a) {
  return quarters<f32x16>([&](int i) { return vsqrtq_f32(a.v[i]); });
}
WEFT_INLINE f32x16 abs(f32x16 a) {
  return quarters<f32x16>([&](int i) { return vabsq_f32(a.v[i]); });
}
WEFT_INLINE f32x16 round(f32x16 a) {  // nearest even
  return quarters<f32x16>([&](int i) { return vrndnq_f32(a.v[i]); });
}
// a where x < y, else b, lane by lane
WEFT_INLINE f32x16 where_less(f32x16 x, f32x16 y, f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), a.v[i], b.v[i]); });
}
// 2^n for integral n in [-126, 127]
WEFT_INLINE f32x16 exp2_integer(f32x16 n) {
  return quarters<f32x16>([&](int i) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23));
  });
}

// p with the lowest 9 bits of n added to its exponent
WEFT_INLINE f32x16 raise_exponent(f32x16 p, f32x16 n) {
  return quarters<f32x16>([&](int i) {
    const uint32x4_t bits = vshlq_n_u32(vreinterpretq_u32_f32(n.v[i]), 23);
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p.v[i]), bits));
  });
}

// Lanes i and i + 8, i + 4, i + 2, i + 1 joined by f.
template <class F>
WEFT_INLINE float fold(f32x16 a, F f) {
  const float32x4_t q = f(f(a.v[0], a.v[2]), f(a.v[1], a.v[3]));
  const float32x4_t half = f(q, vextq_f32(q, q, 2));
  return vgetq_lane_f32(f(half, vextq_f32(half, half, 1)), 0);
}
WEFT_INLINE float sum(f32x16 a) {
  return fold(a, [](float32x4_t x, float32x4_t y) { return vaddq_f32(x, y); });
}
WEFT_INLINE float max_lane(f32x16 a) {
  return fold(a, [](float32x4_t x, float32x4_t y) { return max4(x, y); });
}

}  // namespace weft::ISA
