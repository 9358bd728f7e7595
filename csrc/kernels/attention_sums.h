// attention_sums: products of tiles of bfloat16 for attention, by the matrix unit or by vectors, to the same bits.
//
// Operands are cut into tiles of 512 elements: the left one's [16 rows][32], the right one's [32][16], which the matrix
// unit reads in pairs, [16][16][2]. Sums are of 16 lanes a row.
#pragma once
#include "core/half.h"
#include "kernels/rows.h"
#include "kernels/round_bf16.h"
#include "kernels/state_elements.h"
#if defined(WEFT_ISA_amx)
#include "simd/tiles.h"
#endif

namespace weft::ISA {

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 32;   // of a product's sums; keys that are masked and skipped together
constexpr int64_t kTile = 512;  // elements of an operand's tile

#if defined(WEFT_ISA_amx)

using Rounded = uint16_t;
constexpr int64_t kSpan = 512;  // rows of a task

WEFT_INLINE __m512i round_two(f32x16 low, f32x16 high) {
  const __m512bh both = _mm512_cvtne2ps_pbh(high.v, low.v);
  return reinterpret_cast<const __m512i&>(both);
}
// 32 neighbours in a row of a left tile.
WEFT_INLINE void store_row(Rounded* to, f32x16 low, f32x16 high) { _mm512_store_si512(to, round_two(low, high)); }
// Two neighbouring rows of a right tile.
WEFT_INLINE void store_pair(Rounded* to, f32x16 first, f32x16 second) {
  alignas(64) static constexpr uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(order), round_two(first, second)));
}
// The same of a state's elements. Those that are bfloat16, or as exact in it as codes are, need no rounding.
template <class T>
WEFT_INLINE void pack_pair(Rounded* to, const T* first, const T* second) {
  store_pair(to, widen(first), widen(second));
}
WEFT_INLINE void pack_pair(Rounded* to, const Bf16* first, const Bf16* second) {
  const auto words = [](const Bf16* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  _mm512_store_si512(to, _mm512_or_si512(words(first), _mm512_slli_epi32(words(second), 16)));
}
WEFT_INLINE void pack_pair(Rounded* to, const int8_t* first, const int8_t* second) {
  const auto words = [](const int8_t* p) { return _mm512_castps_si512(load_i8(p).v); };
  _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(words(first), 16), words(second)));
}

// Left operands and sums, in tmm0 to tmm4, have only the rows that exist, because the unit's time grows with the rows.
WEFT_INLINE void shape_tiles(int64_t rows) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = static_cast<uint8_t>(i < 5 ? rows : 16);
  _tile_loadconfig(&shapes);
}

// Sums of T tiles beside each other, in tmm0 to tmm3, from zero_sums or begin_sums to end_sums.
template <int T>
WEFT_INLINE void zero_sums(float*) {
  _tile_zero(0);
  if constexpr (T > 1) _tile_zero(1);
  if constexpr (T > 2) _tile_zero(2);
  if constexpr (T > 3) _tile_zero(3);
}
template <int T>
WEFT_INLINE void begin_sums(const float* sums) {
  settle_stores();
  _tile_loadd(0, sums, 64);
  if constexpr (T > 1) _tile_loadd(1, sums + 256, 64);
  if constexpr (T > 2) _tile_loadd(2, sums + 512, 64);
  if constexpr (T > 3) _tile_loadd(3, sums + 768, 64);
}
// One step: sums [T][rows][16] += left [rows][32] right [32][T][16], tiles of the right one `stride` elements apart.
template <int T>
WEFT_INLINE void add_step(const Rounded* left, const Rounded* right, int64_t stride, float*, int64_t) {
  settle_stores();
  _tile_loadd(4, left, 64);
  _tile_loadd(5, right, 64);
  _tile_dpbf16ps(0, 4, 5);
  if constexpr (T > 1) _tile_loadd(6, right + stride, 64);
  if constexpr (T > 1) _tile_dpbf16ps(1, 4, 6);
  if constexpr (T > 2) _tile_loadd(7, right + 2 * stride, 64);
  if constexpr (T > 2) _tile_dpbf16ps(2, 4, 7);
  if constexpr (T > 3) _tile_loadd(5, right + 3 * stride, 64);
  if constexpr (T > 3) _tile_dpbf16ps(3, 4, 5);
  settle_stores();  // nor may the next packed tile, in the same memory, be stored before this one was loaded
}
template <int T>
WEFT_INLINE void end_sums(float* sums) {
  _tile_stored(0, sums, 64);
  if constexpr (T > 1) _tile_stored(1, sums + 256, 64);
  if constexpr (T > 2) _tile_stored(2, sums + 512, 64);
  if constexpr (T > 3) _tile_stored(3, sums + 768, 64);
}
WEFT_INLINE void end_other_sums(float* sums) {  // tmm2 and tmm3, while tmm0 and tmm1 hold the next ones
  _tile_stored(2, sums, 64);
  _tile_stored(3, sums + 256, 64);
}

#else

using Rounded = float;  // of bfloat16 precision
constexpr int64_t kSpan = 256;

#if defined(WEFT_ISA_avx512)
using Bits = uint32_t __attribute__((vector_size(64)));
#elif defined(WEFT_ISA_avx2)
using Bits = uint32_t __attribute__((vector_size(32)));
#else
using Bits = uint32_t __attribute__((vector_size(16)));
#endif

// As float_to_bf16_normal.
WEFT_INLINE f32x16 round_any(f32x16 x) {
  Bits parts[sizeof(x) / sizeof(Bits)];
  __builtin_memcpy(parts, &x, sizeof(x));
  for (Bits& bits : parts) {
    const Bits size = bits & 0x7FFFFFFFu;
    Bits near = bits + 0x7FFFu + ((bits >> 16) & 1u);
    near = size > 0x7F800000u ? bits | 0x00400000u : near;
    near = size < 0x00800000u ? bits & 0x80000000u : near;
    bits = near & 0xFFFF0000u;
  }
  __builtin_memcpy(&x, parts, sizeof(x));
  return x;
}
WEFT_INLINE void store_rounded(float* to, f32x16 x) { store(to, round_any(x)); }
WEFT_INLINE void store_row(Rounded* to, f32x16 low, f32x16 high) {
  store_rounded(to, low);
  store_rounded(to + kLanes, high);
}
// A half has eleven bits: then the product here is rounded to nearest even at the eighth, and the rest is
// exact.
WEFT_INLINE f32x16 round_half(f32x16 x) {
  const f32x16 more = x * splat(65537.0f);
  return more + (x - more);
}
// Elements of a state; bfloat16 and codes need no rounding.
template <class T>
WEFT_INLINE f32x16 rounded(const T* p) {
  return widen(p);
}
WEFT_INLINE f32x16 rounded(const float* p) { return round_any(load(p)); }
WEFT_INLINE f32x16 rounded(const Half* p) { return round_half(widen(p)); }

WEFT_INLINE void store_pair(Rounded* to, f32x16 first, f32x16 second) { store_row(to, first, second); }
template <class T>
WEFT_INLINE void pack_pair(Rounded* to, const T* first, const T* second) {
  store(to, rounded(first));
  store(to + kLanes, rounded(second));
}

WEFT_INLINE void shape_tiles(int64_t) {}

// Where the 32 rows of a right operand's step are: in a packed tile,
struct TileRows {
  static constexpr int64_t count = kStep;
  const Rounded* first;
  WEFT_INLINE f32x16 row(int64_t k) const { return load(first + k * kLanes); }
};
// or in a state, `stride` elements apart; those from `count` on are zeros. The next rows are prefetched row by row.
template <class T>
struct StateRows {
  int64_t count, stride;
  const T *first, *next;
  WEFT_INLINE f32x16 row(int64_t k) const {
    __builtin_prefetch(next + k * stride);
    return rounded(first + k * stride);
  }
};

template <int first>
struct Odd {};

// n rows of a step: sums [n][16] += left [n][32] right [32][16]. The odd columns go after the even ones: two chains for
// each row at once would not fit the registers. A function of its own: inlined everywhere it would be half a megabyte.
template <int n, class Right>
[[gnu::noinline]] static void add_rows(const Rounded* left, Right right, float* sums) {
  f32x16 even[n], odd[n];
#if defined(WEFT_ISA_neon)
  const auto chain = [&]<int first>(f32x16(&acc)[n], Odd<first>) {
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) acc[i] = zero();
    for (int64_t k = 0; k + first < right.count; k += 4) {
      float32x4_t four[n];
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) four[i] = vld1q_f32(left + i * kStep + k);
      f32x16 x = right.row(k + first);
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) acc[i] = fma_lane<first>(four[i], x, acc[i]);
      if (k + 2 + first >= right.count) break;
      x = right.row(k + 2 + first);
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) acc[i] = fma_lane<first + 2>(four[i], x, acc[i]);
    }
  };
  chain(even, Odd<0>{});
  chain(odd, Odd<1>{});
#else
  auto chain = [&](f32x16(&acc)[n], int64_t first) {
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) acc[i] = zero();
    for (int64_t k = first; k < right.count; k += 2) {
      const f32x16 x = right.row(k);
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) acc[i] = fma(splat(left[i * kStep + k]), x, acc[i]);
    }
  };
  chain(even, 0);
  chain(odd, 1);
#endif
#pragma GCC unroll 4
  for (int i = 0; i < n; ++i) store(sums + i * kLanes, load(sums + i * kLanes) + (even[i] + odd[i]));
}

template <class Right>
WEFT_INLINE void add_four_rows(const Rounded* left, Right right, float* sums) {
  add_rows<4>(left, right, sums);
}
#if defined(WEFT_ISA_neon)
// Those of a packed tile: half of the lanes at a time, so that both chains stay in registers.
[[gnu::noinline]] static void add_four_rows(const Rounded* left, TileRows right, float* sums) {
  for (int64_t lane = 0; lane < kLanes; lane += 8) {
    float32x4_t even[4][2], odd[4][2];
    for (int i = 0; i < 4; ++i) even[i][0] = even[i][1] = odd[i][0] = odd[i][1] = vdupq_n_f32(0.0f);
    for (int64_t k = 0; k < kStep; k += 4) {
      const float* row = right.first + k * kLanes + lane;
      float32x4_t x[4];
      for (int i = 0; i < 4; ++i) x[i] = vld1q_f32(left + i * kStep + k);
      const auto add = [&]<int at>(float32x4_t(&acc)[4][2], Odd<at>) {
        const float32x4_t low = vld1q_f32(row + at * kLanes), high = vld1q_f32(row + at * kLanes + 4);
        for (int i = 0; i < 4; ++i) acc[i][0] = vfmaq_laneq_f32(acc[i][0], low, x[i], at);
        for (int i = 0; i < 4; ++i) acc[i][1] = vfmaq_laneq_f32(acc[i][1], high, x[i], at);
      };
      add(even, Odd<0>{}), add(odd, Odd<1>{}), add(even, Odd<2>{}), add(odd, Odd<3>{});
    }
    for (int i = 0; i < 4; ++i)
      for (int half = 0; half < 2; ++half) {
        float* to = sums + i * kLanes + lane + 4 * half;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), vaddq_f32(even[i][half], odd[i][half])));
      }
  }
}
#endif

// Any number of rows.
template <class Right>
WEFT_INLINE void add_all_rows(const Rounded* left, Right right, float* sums, int64_t rows) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) add_four_rows(left + row * kStep, right, sums + row * kLanes);
  switch (rows - row) {
    case 3: add_rows<3>(left + row * kStep, right, sums + row * kLanes); break;
    case 2: add_rows<2>(left + row * kStep, right, sums + row * kLanes); break;
    case 1: add_rows<1>(left + row * kStep, right, sums + row * kLanes);
  }
}

template <int T>
WEFT_INLINE void zero_sums(float* sums) {
  fill(sums, T * 256, [](auto) { return zero(); });
}
template <int T>
WEFT_INLINE void begin_sums(const float*) {}
template <int T>
WEFT_INLINE void add_step(const Rounded* left, const Rounded* right, int64_t stride, float* sums, int64_t rows) {
  for (int t = 0; t < T; ++t, right += stride, sums += 256) add_all_rows(left, TileRows{right}, sums, rows);
}
template <int T>
WEFT_INLINE void end_sums(float*) {}

#endif

}  // namespace weft::ISA
