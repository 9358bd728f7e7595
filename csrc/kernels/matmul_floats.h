// matmul_floats: products of float32 activations: `matmul`, and `matmul_half` at levels without half-precision arithmetic.
#pragma once
#include "core/weight.h"
#include "kernels/float_tiles.h"
#include "kernels/matmul_decode.h"
#include "kernels/matmul_epilogue.h"
#include "quant/dequant.h"

namespace weft::ISA {

constexpr int64_t kRowStep = 96;   // rows of x that share one pass over W
constexpr int64_t kPanelStep = 32;

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
