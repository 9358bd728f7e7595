// float_tiles: register tiles of products of float32 rows with panels of 16 columns, each sum over k in order.
#pragma once
#include "kernels/matmul_epilogue.h"
#include "kernels/widen.h"

namespace weft::ISA {

// kRows x kPanels sums fill the registers; a single row takes kAhead panels at once to hide the latency of its fmas.
#if defined(WEFT_ISA_avx512)
constexpr int kRows = 12, kPanels = 2, kAhead = 8;
#elif defined(WEFT_ISA_avx2)
constexpr int kRows = 6, kPanels = 1, kAhead = 4;
#elif defined(WEFT_ISA_neon)
constexpr int kRows = 5, kPanels = 1, kAhead = 1;  // and a register a row for four columns of x; a panel is four chains
#else
constexpr int kRows = 2, kPanels = 1, kAhead = 1;
#endif
#if defined(WEFT_ISA_neon)
constexpr bool kWholeTiles = true;  // 16 rows as 5, 5, 3 and 3 take 0.92 of the time that four fours take
#else
constexpr bool kWholeTiles = false;
#endif
constexpr int64_t kDepth = 256;    // columns widened to scratch at once, and per pass over a tile of rows

// What a register tile reads and writes. Sums continue from y unless this is the first block of k.
template <class T>
struct Block {
  const float* x;  // first row, first column of the block of k
  int64_t x_stride;
  const T* w;  // first panel, first column
  int64_t w_stride;  // between panels
  int64_t depth;
  float* y;
  int64_t y_stride, columns;  // columns: of y from here on
  bool first;
  bool fetch = false;  // prefetch the next block of W, at levels where that helps
};

#if defined(WEFT_ISA_neon)
// Column `lane` of the four in x.
template <int lane, class T, int R, int P>
WEFT_INLINE void add_column(const float32x4_t (&x)[R], const T* w, int64_t w_stride, f32x16 (&acc)[R][P]) {
#pragma GCC unroll 16
  for (int p = 0; p < P; ++p) {
    const f32x16 column = widen(w + p * w_stride);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r][p] = fma_lane<lane>(x[r], column, acc[r][p]);
  }
}
#endif

template <class T, int R, int P>
static void tile(const Block<T>& b) {
  f32x16 acc[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
      acc[r][p] = b.first ? zero() : load_n(b.y + r * b.y_stride + p * 16, smaller(16, b.columns - p * 16));
  const float* x = b.x;
  const T* w = b.w;
  const int64_t x_stride = b.x_stride, w_stride = b.w_stride;
  int64_t k = 0;
#if defined(WEFT_ISA_neon)
  for (; k + 4 <= b.depth; k += 4, x += 4, w += 64) {
    float32x4_t four[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) four[r] = vld1q_f32(x + r * x_stride);
    for (int64_t i = 0; b.fetch && i < 64; i += 16) __builtin_prefetch(w + kDepth * 16 + i);
    add_column<0>(four, w, w_stride, acc);
    add_column<1>(four, w + 16, w_stride, acc);
    add_column<2>(four, w + 32, w_stride, acc);
    add_column<3>(four, w + 48, w_stride, acc);
  }
#endif
  for (; k < b.depth; ++k, ++x, w += 16) {
    f32x16 column[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) column[p] = widen(w + p * w_stride);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const f32x16 value = splat(x[r * x_stride]);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) acc[r][p] = fma(value, column[p], acc[r][p]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p)
      store_n(b.y + r * b.y_stride + p * 16, acc[r][p], smaller(16, b.columns - p * 16));
}

template <int R = kRows, int P = kPanels>
static void tile_sized(const Block<float>& b, int64_t rows, int64_t panels) {
  if (rows < R) {
    if constexpr (R > 1) tile_sized<R - 1, P>(b, rows, panels);
  } else if (panels < P) {
    if constexpr (P > 1) tile_sized<R, P - 1>(b, rows, panels);
  } else {
    tile<float, R, P>(b);
  }
}

// Any number of rows: in tiles of nearly equal height, or as many whole ones as leave two lower ones at most.
static void tile_rows(Block<float> b, int64_t rows, int64_t panels) {
  while (rows) {
    const int64_t height = kWholeTiles && rows >= 2 * kRows ? kRows : parts(rows, parts(rows, kRows));
    tile_sized(b, height, panels);
    b.fetch = false;
    rows -= height, b.x += height * b.x_stride, b.y += height * b.y_stride;
  }
}

// One row of x against panels, straight from their element type.
template <class T, int P = kAhead>
static void single_row(Block<T> b, int64_t panels) {
  for (; panels >= P; panels -= P, b.w += P * b.w_stride, b.y += P * 16, b.columns -= P * 16) tile<T, 1, P>(b);
  if constexpr (P > 1)
    if (panels) single_row<T, P / 2>(b, panels);
}

}  // namespace weft::ISA
