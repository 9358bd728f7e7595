// matmul_bf16_rows: matmul_bf16 with vectors, at every level without a matrix unit, and for few rows where there is one.
//
// The matrix unit takes subnormal numbers for zero, before and after each step; so do the vectors of that level, so that a
// row's bits do not depend on the number of rows.
#pragma once
#include "core/weight.h"
#include "kernels/matmul_epilogue.h"
#include "kernels/round_bf16.h"
#include "pack/pairs.h"

namespace weft::ISA {

struct Product {
  const uint16_t *x, *w;
  float* y;  // null where the result is rounded
  uint16_t* narrow_y;
  int64_t depth, columns;  // K, N
  bool split;
  WEFT_INLINE int64_t x_row() const { return split ? 2 * depth : depth; }  // elements, of W too
  WEFT_INLINE int64_t narrow_row() const { return split ? 2 * columns : columns; }
};

// The sums of 16 outputs from `column` on, finished and stored; of the last ones only `count` exist.
WEFT_INLINE void put(const Product& a, const Epilogue& epilogue, int64_t row, int64_t column, f32x16 sums) {
  const int64_t count = smaller(16, a.columns - column);
  const f32x16 result = a.split ? finished(epilogue, sums, column, count) : finished_coarse(epilogue, sums, column, count);
  if (a.y) return store_n(a.y + row * a.columns + column, result, count);
  uint16_t* to = a.narrow_y + row * a.narrow_row() + column;
  if (a.split) store_split(to, to + a.columns, result, count);
  else store_rounded_n(to, result, count);
}

#if defined(WEFT_ISA_avx512)  // and amx
constexpr int kRows = 4, kPanels = 2;
#elif defined(WEFT_ISA_avx2)
constexpr int kRows = 2, kPanels = 2;
#elif defined(WEFT_ISA_neon)
constexpr int kRows = 3, kPanels = 1;
#else
constexpr int kRows = 1, kPanels = 2;
#endif
#if !defined(WEFT_ISA_amx)
constexpr int64_t kTaskRows = kRows, kFewestPanels = 4;
WEFT_INLINE int64_t max_rows(int64_t x_row) { return smaller(64, int64_t{kScratchBytes} / (x_row * 4) / kRows * kRows); }
#endif

// Makes this thread's vectors treat subnormal numbers as zero; returns the previous setting.
WEFT_INLINE unsigned flush_subnormals() {
#if defined(WEFT_ISA_amx)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  return before;
#else
  return 0;
#endif
}
WEFT_INLINE void keep_subnormals([[maybe_unused]] unsigned before) {
#if defined(WEFT_ISA_amx)
  _mm_setcsr(before);
#endif
}

constexpr int64_t kFetchAhead = 2048;  // elements of W to prefetch: the hardware does not run far enough ahead

#if defined(WEFT_ISA_neon)
// Columns `lane` and `lane + 1` of the four in x.
template <int lane, int R, int P>
WEFT_INLINE void add_pair(const float32x4_t (&x)[R], const uint16_t* w, int64_t x_row, f32x16 (&even)[R][P],
                          f32x16 (&odd)[R][P]) {
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
    f32x16 first, second;
    load_bf16_pairs(w + p * x_row * 16, first, second);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      even[r][p] = fma_lane<lane>(x[r], first, even[r][p]);
      odd[r][p] = fma_lane<lane + 1>(x[r], second, odd[r][p]);
    }
  }
}
#endif

template <int R, int P>
WEFT_INLINE void add_step(const float* x, const uint16_t* w, int64_t x_row, f32x16 (&acc)[R][P]) {
  f32x16 even[R][P], odd[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) even[r][p] = zero(), odd[r][p] = zero();
#if defined(WEFT_ISA_neon)
  for (int64_t k = 0; k < kPairColumns; k += 4) {
    float32x4_t four[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) four[r] = vld1q_f32(x + r * x_row + k);
    __builtin_prefetch(w + k * 16 + kFetchAhead);
    add_pair<0>(four, w + k * 16, x_row, even, odd);
    add_pair<2>(four, w + (k + 2) * 16, x_row, even, odd);
  }
#else
  for (int64_t k = 0; k < kPairColumns; k += 2) {
    f32x16 first[P], second[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(w + (p * x_row + k) * 16 + kFetchAhead);
      load_bf16_pairs(w + (p * x_row + k) * 16, first[p], second[p]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        even[r][p] = fma(splat(x[r * x_row + k]), first[p], even[r][p]);
        odd[r][p] = fma(splat(x[r * x_row + k + 1]), second[p], odd[r][p]);
      }
  }
#endif
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = acc[r][p] + (even[r][p] + odd[r][p]);
}

// R rows of x and P panels: sums [R][P][16]. A function of its own, so that nothing of it moves past the switches around it.
template <int R, int P>
__attribute__((noinline)) static void sum_tile(const Product& a, const float* x, int64_t panel, float* sums) {
  f32x16 acc[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = zero();
  const int64_t x_row = a.x_row();
  const uint16_t* w = a.w + panel * 16 * x_row;
  for (int64_t k = 0; k < a.depth; k += kPairColumns) {
    add_step<R, P>(x + k, w + k * 16, x_row, acc);
    if (!a.split) continue;
    add_step<R, P>(x + k, w + (a.depth + k) * 16, x_row, acc);
    add_step<R, P>(x + a.depth + k, w + k * 16, x_row, acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) store(sums + (r * P + p) * 16, acc[r][p]);
}

template <int R, int P>
static void tile(const Product& a, const Epilogue& epilogue, const float* x, int64_t row, int64_t panel) {
  alignas(64) float sums[R * P * 16];
  const unsigned before = flush_subnormals();
  sum_tile<R, P>(a, x, panel, sums);
  keep_subnormals(before);
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) put(a, epilogue, row + r, (panel + p) * 16, load(sums + (r * P + p) * 16));
}

// P panels and rows [row, row_end), the first of which is x.
template <int P, int R = kRows>
static void panel_rows(const Product& a, const Epilogue& epilogue, const float* x, int64_t row, int64_t row_end, int64_t panel) {
  for (; row + R <= row_end; row += R, x += R * a.x_row()) tile<R, P>(a, epilogue, x, row, panel);
  if constexpr (R > 1)
    if (row < row_end) panel_rows<P, R / 2>(a, epilogue, x, row, row_end, panel);
}

// x is widened to scratch first.
static void multiply_rows(const Product& a, const Epilogue& epilogue, const Piece& piece, std::byte* scratch) {
  float* x = reinterpret_cast<float*>(scratch);
  const int64_t row = piece.row, row_end = piece.row_end, panel_end = piece.panel_end;
  int64_t panel = piece.panel;
  const uint16_t* from = a.x + row * a.x_row();
  for (int64_t i = 0; i < (row_end - row) * a.x_row(); i += 16) store(x + i, load_bf16(from + i));
  for (; panel + kPanels <= panel_end; panel += kPanels) panel_rows<kPanels>(a, epilogue, x, row, row_end, panel);
  if (panel < panel_end) panel_rows<1>(a, epilogue, x, row, row_end, panel);
}

}  // namespace weft::ISA
