// matmul_half: y = act(x Wᵀ + b) with W in half precision, and short sums in half precision where the level has it.
//
// Meaning  weft/ops/matmul.py
// Layout   x float32 [M, K], y float32 [M, N] contiguous; W f16 in panels (pack/panels.h)
// Method   at levels with half-precision arithmetic: a row of x times the power of two that takes its largest value to
//          between 4 and 8, rounded to halves; one chain of halves over 64 columns per element, these added up in float32,
//          kept in y between blocks of k. A task rounds its own rows. Elsewhere it is `matmul`
// Bound    fma throughput of halves from about 4 rows on; memory, one pass over W, below
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include "core/weight.h"
#include "kernels/halves.h"
#include "kernels/matmul_epilogue.h"

namespace weft::ISA {

constexpr int kRows = 8;           // of a register tile: 16 sums and 8 registers of x
constexpr int64_t kChain = 64;     // columns of a sum of halves
constexpr int64_t kDepth = 256;    // columns per pass over a task's rows
constexpr int64_t kRowStep = 96;   // rows that share one pass over W
constexpr int64_t kPanelStep = 32;
constexpr int64_t kMaxDepth = int64_t{1} << 15;  // eight rows and more fit into scratch

// What a register tile reads and writes. Sums continue from y unless this is the first block of k; after the last one they
// are multiplied by `by`, one a row.
struct Block {
  const Half* x;  // first row, first column of the block of k
  int64_t x_stride;
  const Half* w;  // of one panel, first column
  int64_t depth;
  float* y;
  int64_t y_stride, columns;  // columns: of y from here on
  bool first;
  const float* by;  // null: not the last block
};

template <int R>
static void tile(const Block& b) {
  const int64_t columns = smaller(16, b.columns);
  for (int64_t chain = 0; chain < b.depth; chain += kChain) {
    const int64_t end = smaller(b.depth, chain + kChain);
    Half8 sums[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = vdupq_n_f16(0);
    for (int64_t k = chain; k < end; k += 8) add_columns(b.x + k, b.x_stride, b.w + k * 16, smaller(8, end - k), sums);
    const bool last = b.by && end == b.depth;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* y = b.y + r * b.y_stride;
      f32x16 total = widened(sums[r]);
      total = (b.first && chain == 0 ? zero() : columns == 16 ? load(y) : load_n(y, columns)) + total;
      if (last) total = total * splat(b.by[r]);
      if (columns == 16) store(y, total);
      else store_n(y, total, columns);
    }
  }
}

template <int R = kRows>
static void tile_sized(const Block& b, int64_t rows) {
  if (rows == R) return tile<R>(b);
  if constexpr (R > 1) tile_sized<R - 1>(b, rows);
}

// One row and one panel: sums stay in registers. A panel at a time is one stream, which is read ahead best.
static void single_row(const Block& b) {
  f32x16 total = zero();
  for (int64_t chain = 0; chain < b.depth; chain += kChain) {
    const int64_t end = smaller(b.depth, chain + kChain);
    Half8 sums[1][2] = {{vdupq_n_f16(0), vdupq_n_f16(0)}};
    for (int64_t k = chain; k < end; k += 8) add_columns(b.x + k, 0, b.w + k * 16, smaller(8, end - k), sums);
    total = total + widened(sums[0]);
  }
  store_n(b.y, total * splat(*b.by), smaller(16, b.columns));
}

// Rounds a row to halves, zeros after it up to a multiple of 8. Returns the factor for its products.
static float round_row(const float* x, int64_t depth, Half* to) {
  float32x4_t most = vdupq_n_f32(0.0f);
  float rest = 0;
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + k)));
  for (; k < depth; ++k) rest = __builtin_fmaxf(rest, __builtin_fabsf(x[k]));
  const uint32_t exponent = bit_cast<uint32_t>(__builtin_fmaxf(rest, vmaxvq_f32(most))) >> 23;
  const uint32_t taken = exponent == 255 ? 129 : exponent < 3 ? 3 : exponent;  // 129: 4 to 8, as they are
  const float scale = bit_cast<float>((127u + 129u - taken) << 23);
  for (k = 0; k < depth; k += 8) vst1q_f16(to + k, read_half(x + k, depth - k, scale));
  return bit_cast<float>((127u - 129u + taken) << 23);
}

// Bias and activation of one panel's outputs, while they are near.
static void finish_panel(const Epilogue& epilogue, float* y, int64_t stride, int64_t rows, int64_t column) {
  if (!epilogue.bias && epilogue.activation == Activation::none) return;
  const int64_t count = smaller(16, stride - column);
  for (int64_t row = 0; row < rows; ++row) {
    float* at = y + row * stride + column;
    store_n(at, finished_coarse(epilogue, load_n(at, count), column, count), count);
  }
}

KERNEL(matmul_half) {
  const Weight& weight = *call.in[1].weight;
  const int64_t depth = weight.cols, columns = weight.rows, x_stride = parts(depth, 8) * 8;
  // The op's shape rule refuses others, and the binding makes no other layout for it.
  if (depth > kMaxDepth || weight.dtype != DType::f16 || weight.layout != Layout::panels) __builtin_trap();
  const float* x = call.in[0].as<float>();
  float* y = call.out[0].as<float>();
  const Epilogue epilogue(call);
  const int64_t most_rows = smaller(kRowStep, static_cast<int64_t>(kScratchBytes) / (2 * x_stride) / kRows * kRows);
  const Pieces pieces(call, weight, kRows, most_rows, kPanelStep, 4, worker.count);
  Half* rounded = reinterpret_cast<Half*>(worker.scratch);
  float by[kRowStep];
  int64_t held = -1;  // the first of the rows in `rounded`
  for (int64_t task; (task = worker.next(pieces.count())) < pieces.count();) {
    const Piece piece = pieces.at(task);
    const int64_t row = piece.row, rows = piece.row_end - row;
    if (!rows) continue;
    const auto* w = reinterpret_cast<const Half*>(matrix_of(weight, piece));
    for (int64_t r = 0; held != row && r < rows; ++r) by[r] = round_row(x + (row + r) * depth, depth, rounded + r * x_stride);
    held = row;
    for (int64_t panel = piece.panel; panel < piece.panel_end; ++panel) {
      Block b{rounded, x_stride, w + panel * depth * 16, depth, y + row * columns + panel * 16, columns,
              columns - panel * 16, true, by};
      if (rows == 1) single_row(b);
      for (int64_t k = 0; rows > 1 && k < depth; k += kDepth, b.w += kDepth * 16, b.first = false) {
        b.depth = smaller(kDepth, depth - k);
        for (int64_t r = 0, height; r < rows; r += height) {
          height = parts(rows - r, parts(rows - r, kRows));
          Block part = b;
          part.x += r * x_stride + k, part.y += r * columns;
          part.by = k + kDepth < depth ? nullptr : by + r;
          tile_sized(part, height);
        }
      }
      finish_panel(epilogue.of(piece.matrix, columns), y + row * columns, columns, rows, panel * 16);
    }
  }
}

}  // namespace weft::ISA
#else
#include "kernels/matmul_floats.h"

namespace weft::ISA {

KERNEL(matmul_half) { multiply_floats(call, worker); }

}  // namespace weft::ISA
#endif
