// doubles: eight doubles at every level, in as many registers as they take: the twin of csrc/simd's 16 floats, so that every
// level has the same order of summing.
#pragma once
#include "simd/simd.h"

namespace weft::ISA {

#if defined(WEFT_ISA_avx512)
typedef __m512d Part;
#elif defined(WEFT_ISA_avx2)
typedef __m256d Part;
#elif defined(WEFT_ISA_neon)
typedef float64x2_t Part;
#else
typedef double Part __attribute__((vector_size(16)));
#endif
typedef uint64_t PartBits __attribute__((vector_size(sizeof(Part))));
constexpr int kParts = 64 / sizeof(Part), kPerPart = 8 / kParts;

struct f64x8 {
  Part v[kParts];
};

WEFT_INLINE Part fused_part(Part a, Part b, Part c) {
#if defined(WEFT_ISA_avx512)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(WEFT_ISA_avx2)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(WEFT_ISA_neon)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}
WEFT_INLINE Part splat_part(double x) {
#if defined(WEFT_ISA_avx512)
  return _mm512_set1_pd(x);
#elif defined(WEFT_ISA_avx2)
  return _mm256_set1_pd(x);
#elif defined(WEFT_ISA_neon)
  return vdupq_n_f64(x);
#else
  return Part{x, x};
#endif
}
// The larger one; the second where either is NaN.
WEFT_INLINE Part larger_part(Part a, Part b) {
#if defined(WEFT_ISA_avx512)
  return _mm512_max_pd(a, b);
#elif defined(WEFT_ISA_avx2)
  return _mm256_max_pd(a, b);
#elif defined(WEFT_ISA_neon)
  return vbslq_f64(vcgtq_f64(a, b), a, b);
#else
  return a > b ? a : b;
#endif
}
// `a` where x is at least `least`, else 0
WEFT_INLINE Part where_at_least(Part x, Part least, Part a) {
#if defined(WEFT_ISA_avx512)
  return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(x, least, _CMP_GE_OQ), a);
#elif defined(WEFT_ISA_avx2)
  return _mm256_and_pd(_mm256_cmp_pd(x, least, _CMP_GE_OQ), a);
#elif defined(WEFT_ISA_neon)
  return vreinterpretq_f64_u64(vandq_u64(vcgeq_f64(x, least), vreinterpretq_u64_f64(a)));
#else
  return x >= least ? a : Part{};
#endif
}
// p with n added to its exponent, where t = n + 1.5 * 2^52 has n in its lowest bits
WEFT_INLINE Part raise_part(Part p, Part t) { return (Part)((PartBits)p + ((PartBits)t << 52)); }

#define WEFT_PARTS for (int i = 0; i < kParts; ++i)
WEFT_INLINE f64x8 splat8(double x) {
  f64x8 r;
  _Pragma("GCC unroll 4") WEFT_PARTS r.v[i] = splat_part(x);
  return r;
}
WEFT_INLINE f64x8 load8(const double* p) {
  f64x8 r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
WEFT_INLINE f64x8 load8(const double* p, int64_t n, double otherwise) {  // n < 8
  double part[8];
  for (int i = 0; i < 8; ++i) part[i] = i < n ? p[i] : otherwise;
  return load8(part);
}
WEFT_INLINE void store8(double* p, f64x8 a) { std::memcpy(p, &a, sizeof(a)); }
WEFT_INLINE void store8(double* p, f64x8 a, int64_t n) {
  double part[8];
  store8(part, a);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}
WEFT_INLINE f64x8 operator+(f64x8 a, f64x8 b) {
  _Pragma("GCC unroll 4") WEFT_PARTS a.v[i] = a.v[i] + b.v[i];
  return a;
}
WEFT_INLINE f64x8 operator-(f64x8 a, f64x8 b) {
  _Pragma("GCC unroll 4") WEFT_PARTS a.v[i] = a.v[i] - b.v[i];
  return a;
}
WEFT_INLINE f64x8 operator*(f64x8 a, f64x8 b) {
  _Pragma("GCC unroll 4") WEFT_PARTS a.v[i] = a.v[i] * b.v[i];
  return a;
}
WEFT_INLINE f64x8 fma(f64x8 a, f64x8 b, f64x8 c) {
  _Pragma("GCC unroll 4") WEFT_PARTS c.v[i] = fused_part(a.v[i], b.v[i], c.v[i]);
  return c;
}
WEFT_INLINE f64x8 larger(f64x8 a, f64x8 b) {
  _Pragma("GCC unroll 4") WEFT_PARTS a.v[i] = larger_part(a.v[i], b.v[i]);
  return a;
}

// e^x for x up to 709, within 7e-15 of it; 0 below -700. With n the whole number nearest to x / ln 2 it is 2^n e^r, |r| <= 0.3466,
// and e^r its series up to r^11. The terms are joined in pairs: a chain of eleven would wait for itself. Part by part, so that
// the constants stay in registers.
WEFT_INLINE Part exp_part(Part x) {
  const Part big = splat_part(6755399441055744.0);  // 1.5 * 2^52: what is added to it is rounded, and lies in the lowest bits
  const Part lowest = splat_part(-700.0), bounded = larger_part(x, lowest);
  const Part t = fused_part(bounded, splat_part(1.4426950408889634), big), n = t - big;
  Part r = fused_part(n, splat_part(-0.693147180369123816490), bounded);
  r = fused_part(n, splat_part(-1.90821492927058770002e-10), r);
  const Part r2 = r * r, r4 = r2 * r2;
  const Part p01 = r + splat_part(1.0), p23 = fused_part(r, splat_part(1.0 / 6), splat_part(0.5));
  const Part p45 = fused_part(r, splat_part(1.0 / 120), splat_part(1.0 / 24));
  const Part p67 = fused_part(r, splat_part(1.0 / 5040), splat_part(1.0 / 720));
  const Part p89 = fused_part(r, splat_part(1.0 / 362880), splat_part(1.0 / 40320));
  const Part pab = fused_part(r, splat_part(1.0 / 39916800), splat_part(1.0 / 3628800));
  const Part low = fused_part(p23, r2, p01), middle = fused_part(p67, r2, p45), high = fused_part(pab, r2, p89);
  return where_at_least(x, lowest, raise_part(fused_part(fused_part(high, r4, middle), r4, low), t));
}
WEFT_INLINE f64x8 exp8(f64x8 x) {
  _Pragma("GCC unroll 4") WEFT_PARTS x.v[i] = exp_part(x.v[i]);
  return x;
}
#undef WEFT_PARTS

// Lanes i and i + 4, i + 2, i + 1 joined by f.
template <class F>
WEFT_INLINE double fold8(f64x8 a, F f) {
  double lane[8];
  store8(lane, a);
  for (int half = 4; half; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = f(lane[i], lane[i + half]);
  return lane[0];
}
WEFT_INLINE double sum8(f64x8 a) {
  return fold8(a, [](double x, double y) __attribute__((always_inline)) { return x + y; });
}
WEFT_INLINE double largest8(f64x8 a) {
  return fold8(a, [](double x, double y) __attribute__((always_inline)) { return x > y ? x : y; });
}
// e^x of one number, with the bits of the eight.
WEFT_INLINE double exp8(double x) {
  double lane[8];
  store8(lane, exp8(splat8(x)));
  return lane[0];
}

}  // namespace weft::ISA
