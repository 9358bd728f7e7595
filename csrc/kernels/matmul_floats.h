// matmul_floats: products of float32 activations: `matmul`, and `matmul_half` at levels without half-precision arithmetic.
#pragma once
#include "core/weight.h"
#include "kernels/matmul_decode.h"
#include "kernels/matmul_epilogue.h"
#include "kernels/widen.h"
#include "quant/dequant.h"

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
constexpr int64_t kRowStep = 96;   // rows of x that share one pass over W
constexpr int64_t kPanelStep = 32;

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

struct Product {
  const float* x;
  float* y;
  DType dtype;
  Layout layout;
  const std::byte* w;
  int64_t depth, columns;  // K, N
  std::byte* scratch;
};

template <class T>
static void widen_floats(const Product& a, int64_t panel, int64_t k, int64_t depth, float* out) {
  const T* from = reinterpret_cast<const T*>(a.w) + (panel * a.depth + k) * 16;
  for (int64_t i = 0; i < depth; ++i) store(out + i * 16, widen(from + i * 16));
}

// Rows of any type: 16 rows are dequantised beside the panel, then interleaved.
static void dequantise_panel(const Product& a, int64_t panel, int64_t k, int64_t depth, float* out) {
  float* row_values = reinterpret_cast<float*>(a.scratch + kPanels * kDepth * 16 * sizeof(float));
  const DTypeInfo& type = info(a.dtype);
  const int64_t row_bytes = a.depth / type.block * type.bytes, skip = k / type.block * type.bytes;
  for (int64_t r = 0; r < 16; ++r) {
    const int64_t row = panel * 16 + r;
    if (row < a.columns)
      dequantise(a.dtype, a.w + row * row_bytes + skip, row_values, static_cast<size_t>(depth));
    for (int64_t i = 0; i < depth; ++i) out[i * 16 + r] = row < a.columns ? row_values[i] : 0.0f;
  }
}

// Format::panel_bytes, from constants: called as a function it would be a symbol that all levels share.
template <DType type>
WEFT_INLINE int64_t bytes_of_panel(int64_t cols) {
  constexpr Format f = format_of(type);
  constexpr int64_t codes = f.chunk_bytes(), header = f.header_bytes();
  return (cols / kChunk * codes + cols / f.block * header + 63) / 64 * 64;
}

// Columns [k, k + depth) of one panel of any type but f32.
static void widen_panel(const Product& a, int64_t panel, int64_t k, int64_t depth, float* out) {
  switch (a.dtype) {
    case DType::f16: return widen_floats<F16>(a, panel, k, depth, out);
    case DType::bf16: return widen_floats<Bf16>(a, panel, k, depth, out);
#define X(name)                                                                                                        \
  case DType::name:                                                                                                    \
    return decode_panel<DType::name>(a.w + panel * bytes_of_panel<DType::name>(a.depth), a.depth, k, depth, out);
      WEFT_PACKED_TYPES(X)
#undef X
    default: __builtin_trap();  // verified when the program was bound
  }
}

// Columns [k, k + depth) of panels [panel, panel + count) as float32, in place or in scratch.
static void fetch_panels(const Product& a, int64_t panel, int64_t count, int64_t k, Block<float>& b) {
  const bool packed = a.layout == Layout::panels;
  if (packed && a.dtype == DType::f32) {
    b.w = reinterpret_cast<const float*>(a.w) + (panel * a.depth + k) * 16;
    b.w_stride = a.depth * 16;
    b.fetch = true;
    return;
  }
  float* out = reinterpret_cast<float*>(a.scratch);
  b.w = out;
  b.w_stride = kDepth * 16;
  for (int64_t p = 0; p < count; ++p, out += b.w_stride) {
    if (packed) widen_panel(a, panel + p, k, b.depth, out);
    else dequantise_panel(a, panel + p, k, b.depth, out);
  }
}

static void many_rows(const Product& a, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
  for (; panel < panel_end; panel += kPanels) {
    const int64_t count = smaller(kPanels, panel_end - panel);
    for (int64_t k = 0; k < a.depth; k += kDepth) {
      Block<float> b{a.x + row * a.depth + k, a.depth, nullptr, 0, smaller(kDepth, a.depth - k),
                     a.y + row * a.columns + panel * 16, a.columns, a.columns - panel * 16, k == 0};
      fetch_panels(a, panel, count, k, b);
      tile_rows(b, row_end - row, count);
    }
  }
}

template <class T>
static void one_row(const Product& a, int64_t row, int64_t panel, int64_t panel_end) {
  single_row<T>({a.x + row * a.depth, a.depth, reinterpret_cast<const T*>(a.w) + panel * a.depth * 16,
                 a.depth * 16, a.depth, a.y + row * a.columns + panel * 16, a.columns, a.columns - panel * 16, true},
                panel_end - panel);
}

[[maybe_unused]] static void multiply_floats(const Call& call, const Worker& worker) {
  const Weight& weight = *call.in[1].weight;
  Product a{call.in[0].as<float>(), call.out[0].as<float>(), weight.dtype, weight.layout, nullptr,
            weight.cols, weight.rows, worker.scratch};
  const Epilogue epilogue(call);
  const Pieces pieces(call, weight, kRows, kRowStep, kPanelStep, 4, worker.count);
  const bool packed = weight.layout == Layout::panels;
  for (int64_t task; (task = worker.next(pieces.count())) < pieces.count();) {
    const Piece piece = pieces.at(task);
    const auto [matrix, row, row_end, panel, panel_end] = piece;
    if (row == row_end) continue;
    a.w = matrix_of(weight, piece);
    const bool single = packed && row_end - row == 1;
    if (single && weight.dtype == DType::f32) one_row<float>(a, row, panel, panel_end);
    else if (single && weight.dtype == DType::f16) one_row<F16>(a, row, panel, panel_end);
    else if (single && weight.dtype == DType::bf16) one_row<Bf16>(a, row, panel, panel_end);
    else many_rows(a, row, row_end, panel, panel_end);
    finish(epilogue.of(matrix, a.columns), a.y, a.columns, row, row_end, panel * 16, smaller(a.columns, panel_end * 16));
  }
}

}  // namespace weft::ISA
