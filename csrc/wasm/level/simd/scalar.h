// The level wasm128, which the build for browsers finds in place of simd/scalar.h: f32x16 in four registers of WebAssembly's
// SIMD. It has no fused multiply-add, so its bits are those of the scalar level. (Relaxed SIMD has one where the machine has
// one: then the same page would give other bits elsewhere.)
#pragma once
#include <wasm_simd128.h>

#include "core/half.h"

namespace weft::ISA {

struct f32x16 {
  v128_t v[4];
};

// A vector of type V whose quarter i is f(i).
template <class V, class F>
WEFT_INLINE V quarters(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

template <class F>
WEFT_INLINE f32x16 lanes(F f) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_make(f(4 * i), f(4 * i + 1), f(4 * i + 2), f(4 * i + 3)); });
}

WEFT_INLINE v128_t load4_n(const float* p, int64_t n) {
  if (n >= 4) return wasm_v128_load(p);
  v128_t a = wasm_f32x4_const_splat(0);
  if (n > 0) a = wasm_v128_load32_lane(p, a, 0);
  if (n > 1) a = wasm_v128_load32_lane(p + 1, a, 1);
  if (n > 2) a = wasm_v128_load32_lane(p + 2, a, 2);
  return a;
}
WEFT_INLINE void store4_n(float* p, v128_t a, int64_t n) {
  if (n >= 4) return wasm_v128_store(p, a);
  if (n > 0) wasm_v128_store32_lane(p, a, 0);
  if (n > 1) wasm_v128_store32_lane(p + 1, a, 1);
  if (n > 2) wasm_v128_store32_lane(p + 2, a, 2);
}

WEFT_INLINE f32x16 splat(float x) {
  return quarters<f32x16>([=](int) { return wasm_f32x4_splat(x); });
}
WEFT_INLINE f32x16 zero() { return splat(0.0f); }
WEFT_INLINE f32x16 load(const float* p) {
  return quarters<f32x16>([=](int i) { return wasm_v128_load(p + 4 * i); });
}
WEFT_INLINE void store(float* p, f32x16 a) {
  for (int i = 0; i < 4; ++i) wasm_v128_store(p + 4 * i, a.v[i]);
}
WEFT_INLINE f32x16 load_n(const float* p, int64_t n) {
  return n >= 16 ? load(p) : quarters<f32x16>([=](int i) { return load4_n(p + 4 * i, n - 4 * i); });
}
WEFT_INLINE void store_n(float* p, f32x16 a, int64_t n) {
  if (n >= 16) return store(p, a);
  for (int i = 0; i < 4; ++i) store4_n(p + 4 * i, a.v[i], n - 4 * i);
}

WEFT_INLINE void copy_u16(uint16_t* to, const uint16_t* from, int64_t n) {
  for (int64_t i = 0; i < n && i < 16; ++i) to[i] = from[i];
}
// Four halves, each in the low bits of a lane. Numbers move their exponent's bias; infinities and NaNs get the largest
// exponent, a NaN made quiet; zeros and subnormals are a product that is exact.
WEFT_INLINE v128_t widen_half(v128_t half) {
  const v128_t magnitude = wasm_v128_and(half, wasm_i32x4_const_splat(0x7FFF));
  const v128_t sign = wasm_i32x4_shl(wasm_v128_and(half, wasm_i32x4_const_splat(0x8000)), 16);
  const v128_t moved = wasm_i32x4_add(wasm_i32x4_shl(magnitude, 13), wasm_i32x4_const_splat((127 - 15) << 23));
  const v128_t large = wasm_i32x4_gt(magnitude, wasm_i32x4_const_splat(0x7BFF)), nan = wasm_i32x4_gt(magnitude, wasm_i32x4_const_splat(0x7C00));
  const v128_t small = wasm_i32x4_lt(magnitude, wasm_i32x4_const_splat(0x0400));
  const v128_t tiny = wasm_f32x4_mul(wasm_f32x4_convert_i32x4(magnitude), wasm_f32x4_const_splat(0x1p-24f));
  v128_t out = wasm_i32x4_add(moved, wasm_v128_and(large, wasm_i32x4_const_splat((255 - 31 - 112) << 23)));
  out = wasm_v128_or(out, wasm_v128_and(nan, wasm_i32x4_const_splat(0x00400000)));
  return wasm_v128_or(sign, wasm_v128_bitselect(tiny, out, small));
}
WEFT_INLINE f32x16 load_f16(const uint16_t* p) {
  return quarters<f32x16>([=](int i) { return widen_half(wasm_u32x4_load16x4(p + 4 * i)); });
}
WEFT_INLINE f32x16 load_f16_n(const uint16_t* p, int64_t n) {
  uint16_t part[16] = {};
  copy_u16(part, p, n);
  return load_f16(part);
}
WEFT_INLINE void store_f16_n(uint16_t* p, f32x16 a, int64_t n) {
  float lane[16];
  store(lane, a);
  for (int i = 0; i < 16 && i < n; ++i) p[i] = float_to_half(lane[i]);
}
WEFT_INLINE void store_f16(uint16_t* p, f32x16 a) { store_f16_n(p, a, 16); }
WEFT_INLINE f32x16 load_bf16(const uint16_t* p) {
  return quarters<f32x16>([=](int i) { return wasm_i32x4_shl(wasm_u32x4_load16x4(p + 4 * i), 16); });
}
WEFT_INLINE f32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  uint16_t part[16] = {};
  copy_u16(part, p, n);
  return load_bf16(part);
}

// 16 pairs of bfloat16, the first and the second of each
WEFT_INLINE void load_bf16_pairs(const uint16_t* p, f32x16& first, f32x16& second) {
  const auto both = [=](int i) { return wasm_v128_load(p + 8 * i); };
  first = quarters<f32x16>([=](int i) { return wasm_i32x4_shl(both(i), 16); });
  second = quarters<f32x16>([=](int i) { return wasm_v128_and(both(i), wasm_u32x4_const_splat(0xFFFF0000)); });
}

WEFT_INLINE f32x16 operator+(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_add(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 operator-(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_sub(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 operator*(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_mul(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 operator/(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_div(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return a * b + c; }

// a*b + c of two lanes with one rounding. The product is exact in 53 bits; a sum that is not is made odd, which the second
// rounding cannot mistake for a tie.
WEFT_INLINE v128_t fused2(v128_t a, v128_t b, v128_t c) {
  const v128_t product = wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4(a), wasm_f64x2_promote_low_f32x4(b));
  const v128_t add = wasm_f64x2_promote_low_f32x4(c), total = wasm_f64x2_add(product, add);
  const v128_t part = wasm_f64x2_sub(total, product);
  const v128_t lost = wasm_f64x2_add(wasm_f64x2_sub(product, wasm_f64x2_sub(total, part)), wasm_f64x2_sub(add, part));
  const v128_t none = wasm_f64x2_const_splat(0);
  const v128_t inexact = wasm_v128_or(wasm_f64x2_gt(lost, none), wasm_f64x2_lt(lost, none));  // not for NaN
  const v128_t even = wasm_i64x2_eq(wasm_v128_and(total, wasm_i64x2_const_splat(1)), wasm_i64x2_const_splat(0));
  // one unit away from zero where what was lost has the sum's sign, else one towards it
  const v128_t differ = wasm_i64x2_shr(wasm_v128_xor(lost, total), 63);
  const v128_t step = wasm_v128_and(wasm_v128_and(inexact, even), wasm_v128_or(differ, wasm_i64x2_const_splat(1)));
  return wasm_f32x4_demote_f64x2_zero(wasm_i64x2_add(total, step));
}
WEFT_INLINE v128_t upper(v128_t a) { return wasm_i64x2_shuffle(a, a, 1, 1); }
[[clang::noinline]] inline f32x16 fused_exactly(const f32x16& a, const f32x16& b, const f32x16& c) {
  return quarters<f32x16>([&](int i) {
    const v128_t low = fused2(a.v[i], b.v[i], c.v[i]), high = fused2(upper(a.v[i]), upper(b.v[i]), upper(c.v[i]));
    return wasm_i64x2_shuffle(low, high, 0, 2);
  });
}
// Rounding twice differs from rounding once only if the first result lies in the middle of two floats: its lowest 28 bits
// are 0 then, also where the float is subnormal. That is rare, so one test decides for all lanes.
WEFT_INLINE f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {
  const v128_t below = wasm_i64x2_const_splat((1 << 28) - 1), none = wasm_i64x2_const_splat(0);
  v128_t middle = none;
  const auto two = [&](v128_t x, v128_t y, v128_t z) {
    const v128_t total = wasm_f64x2_add(wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4(x), wasm_f64x2_promote_low_f32x4(y)), wasm_f64x2_promote_low_f32x4(z));
    middle = wasm_v128_or(middle, wasm_i64x2_eq(wasm_v128_and(total, below), none));
    return wasm_f32x4_demote_f64x2_zero(total);
  };
  const f32x16 quick = quarters<f32x16>([&](int i) {
    return wasm_i64x2_shuffle(two(a.v[i], b.v[i], c.v[i]), two(upper(a.v[i]), upper(b.v[i]), upper(c.v[i])), 0, 2);
  });
  if (__builtin_expect(wasm_v128_any_true(middle), 0)) return fused_exactly(a, b, c);
  return quick;
}

// The second operand when either is NaN, and of two zeros, as the x86 instructions do.
WEFT_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_pmax(b.v[i], a.v[i]); });
}
WEFT_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_pmin(b.v[i], a.v[i]); });
}
WEFT_INLINE f32x16 sqrt(f32x16 a) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_sqrt(a.v[i]); });
}
WEFT_INLINE f32x16 abs(f32x16 a) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_abs(a.v[i]); });
}
WEFT_INLINE f32x16 round(f32x16 a) {  // nearest even
  return quarters<f32x16>([&](int i) { return wasm_f32x4_nearest(a.v[i]); });
}
// a where x < y, else b, lane by lane
WEFT_INLINE f32x16 where_less(f32x16 x, f32x16 y, f32x16 a, f32x16 b) {
  return quarters<f32x16>([&](int i) { return wasm_v128_bitselect(a.v[i], b.v[i], wasm_f32x4_lt(x.v[i], y.v[i])); });
}
// 2^n for integral n in [-126, 127]: the sum leaves n + 127 in its low bits, the shift makes it the exponent.
WEFT_INLINE f32x16 exp2_integer(f32x16 n) {
  return quarters<f32x16>([&](int i) { return wasm_i32x4_shl(wasm_f32x4_add(n.v[i], wasm_f32x4_const_splat(12583039.0f)), 23); });
}

// p with the lowest 9 bits of n added to its exponent
WEFT_INLINE f32x16 raise_exponent(f32x16 p, f32x16 n) {
  return quarters<f32x16>([&](int i) { return wasm_i32x4_add(p.v[i], wasm_i32x4_shl(n.v[i], 23)); });
}

// Lanes i and i + 8, i + 4, i + 2, i + 1 joined by f.
template <class F>
WEFT_INLINE float fold(f32x16 a, F f) {
  const v128_t q = f(f(a.v[0], a.v[2]), f(a.v[1], a.v[3]));
  const v128_t half = f(q, wasm_i64x2_shuffle(q, q, 1, 0));
  return wasm_f32x4_extract_lane(f(half, wasm_i32x4_shuffle(half, half, 1, 0, 3, 2)), 0);
}
WEFT_INLINE float sum(f32x16 a) {
  return fold(a, [](v128_t x, v128_t y) { return wasm_f32x4_add(x, y); });
}
WEFT_INLINE float max_lane(f32x16 a) {
  return fold(a, [](v128_t x, v128_t y) { return wasm_f32x4_pmax(y, x); });
}

}  // namespace weft::ISA
