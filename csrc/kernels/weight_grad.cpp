// weight_grad: into + gradᵀ x, sequence by sequence; of a stack, each matrix from its own rows.
//
// Meaning  weft/ops/training.py
// Layout   grad [M, N], x [M, K], into, y [N, K] or [E, N, K] contiguous; segments i32 [B+1]; rows i32 [M] or absent;
//          starts i32 [E+1] or absent, with rows; y may be into
// Method   a task owns a block of the result; of some sequences at a time it puts the columns of both sides together that
//          meet in a tile; a sequence's product is a chain over its rows from zero, in registers, then added
// Bound    arithmetic
#include "kernels/batch_rows.h"
#include "kernels/strips.h"

namespace weft::ISA {
namespace {

#if defined(WEFT_ISA_avx512)
constexpr int kHigh = 6, kWide = 4;  // of a tile: rows, and vectors of 16 columns
#elif defined(WEFT_ISA_avx2)
constexpr int kHigh = 6, kWide = 1;
#else
constexpr int kHigh = 4, kWide = 1;
#endif
constexpr int64_t kPanel = 16 * kWide;
constexpr int64_t kTogether = 4 * kHigh;             // columns of grad that are read together: lines of the cache
constexpr int64_t kRowsHeld = kWide > 1 ? 128 : 256;  // rows of some sequences: both sides of a tile stay near
constexpr int64_t kMostRows = static_cast<int64_t>(kScratchBytes / sizeof(float)) / (kStripColumns + kTogether);

// `count` rows of both sides of a tile: grad's [count, kHigh], x's [count, kPanel]
WEFT_INLINE void add_rows(f32x16 (&acc)[kHigh][kWide], const float* grad, const float* x, int64_t count) {
  for (int64_t d = 0; d < count; ++d, grad += kHigh, x += kPanel) {
    f32x16 right[kWide];
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) right[v] = load(x + 16 * v);
#if defined(WEFT_ISA_neon)
    const float32x4_t left = vld1q_f32(grad);
    acc[0][0] = fma_lane<0>(left, right[0], acc[0][0]);
    acc[1][0] = fma_lane<1>(left, right[0], acc[1][0]);
    acc[2][0] = fma_lane<2>(left, right[0], acc[2][0]);
    acc[3][0] = fma_lane<3>(left, right[0], acc[3][0]);
#else
#pragma GCC unroll 8
    for (int r = 0; r < kHigh; ++r) {
      const f32x16 left = splat(grad[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) acc[r][v] = fma(left, right[v], acc[r][v]);
    }
#endif
  }
}

// Adds the products of sequences that end at `ends` to a tile of y, of which `tall` rows and `wide` columns are there.
WEFT_INLINE void add_tile(float* y, int64_t row, int64_t tall, int64_t wide, const float* grad, const float* x,
                          const int32_t* ends, int64_t sequences) {
  for (int64_t s = 0, first = 0; s < sequences; first = ends[s++]) {
    f32x16 acc[kHigh][kWide];
#pragma GCC unroll 8
    for (int r = 0; r < kHigh; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) acc[r][v] = zero();
    add_rows(acc, grad + first * kHigh, x + first * kPanel, ends[s] - first);
    const bool whole = tall >= kHigh && wide >= kPanel;
#pragma GCC unroll 8
    for (int r = 0; r < kHigh; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) {
        float* to = y + r * row + 16 * v;
        if (whole) {
          store(to, load(to) + acc[r][v]);
        } else if (r < tall && 16 * v < wide) {
          const int64_t some = smaller(16, wide - 16 * v);
          store_n(to, load_n(to, some) + acc[r][v], some);
        }
      }
  }
}

// to [columns / each, count, each]: `wide` of the columns of rows that lie `row` apart, and zeros for the others
template <int64_t each>
WEFT_INLINE void put_together(float* to, const float* from, int64_t row, int64_t count, int64_t wide, int64_t columns) {
  for (int64_t m = 0; m < count; ++m, from += row, to += each) {
    float* at = to;
    for (int64_t c = 0; c < columns; c += each, at += count * each) {
      if (c + each <= wide) std::memcpy(at, from + c, each * sizeof(float));
      else
        for (int64_t i = 0; i < each; ++i) at[i] = c + i < wide ? from[c + i] : 0.0f;
    }
  }
}

struct Block {
  const float *grad, *x;
  float* y;
  int64_t outer, inner, n, tall, k, wide;
};

// Sequences with the rows [first, first + ends[sequences - 1])
void add_sequences(const Block& block, int64_t first, const int32_t* ends, int64_t sequences, float* scratch) {
  const int64_t count = ends[sequences - 1];
  float *right = scratch, *left = scratch + count * kStripColumns;
  put_together<kPanel>(right, block.x + first * block.inner + block.k, block.inner, count, block.wide, kStripColumns);
  for (int64_t i = 0; i < block.tall; i += kTogether) {
    const int64_t some = smaller(kTogether, block.tall - i);
    put_together<kHigh>(left, block.grad + first * block.outer + block.n + i, block.outer, count, some, kTogether);
    for (int64_t j = 0; j < block.wide; j += kPanel)
      for (int64_t r = 0; r < some; r += kHigh) {
        float* to = block.y + (block.n + i + r) * block.inner + block.k + j;
        const float *grad = left + r * count, *x = right + j * count;
        add_tile(to, block.inner, smaller(kHigh, some - r), smaller(kPanel, block.wide - j), grad, x, ends, sequences);
      }
  }
}

// A sequence of more rows than there is room for: a few rows of the block at a time.
void add_long(const Block& block, int64_t first, int64_t count, float* part) {
  const int64_t room = static_cast<int64_t>(kScratchBytes / sizeof(float)) / kStripColumns;
  for (int64_t i = 0; i < block.tall; i += room) {
    const int64_t some = smaller(room, block.tall - i);
    clear(part, some * kStripColumns);
    add_product(part, kStripColumns, some, block.wide, {block.grad + first * block.outer + block.n + i, 1, block.outer},
                block.x + first * block.inner + block.k, block.inner, count);
    for (int64_t r = 0; r < some; ++r) {
      float* to = block.y + (block.n + i + r) * block.inner + block.k;
      fill(to, block.wide, [&](auto at) { return at(to) + at(part + r * kStripColumns); });
    }
  }
}

}  // namespace

KERNEL(weight_grad) {
  const int64_t all = call.in[0].rows(), outer = call.in[0].cols(), inner = call.in[1].cols();
  const int32_t *segments = call.in[2].as<int32_t>(), *tokens = call.in[4].present() ? call.in[4].as<int32_t>() : nullptr;
  const int32_t* starts = call.n_in > 5 && call.in[5].data ? call.in[5].as<int32_t>() : nullptr;
  const int64_t batch = call.in[2].size() - 1, matrices = starts ? call.in[3].dim[0] : 1;
  float* scratch = reinterpret_cast<float*>(worker.scratch);
  const Tiling tiling(outer, inner, worker.count);
  for (int64_t task; (task = worker.next(matrices * tiling.tasks)) < matrices * tiling.tasks;) {
    const auto [n, tall, k, wide] = tiling.at(task % tiling.tasks);
    const int64_t matrix = task / tiling.tasks;
    // Whatever starts say, rows exist and are in order.
    const int64_t from = starts ? larger(0, smaller(all, starts[matrix])) : 0;
    const int64_t rows = starts ? larger(0, smaller(all, starts[matrix + 1]) - from) : all;
    const float *grad = call.in[0].as<float>() + from * outer, *x = call.in[1].as<float>() + from * inner;
    const float* into = call.in[3].as<float>() + matrix * outer * inner;
    float* y = call.out[0].as<float>() + matrix * outer * inner;
    const Block block{grad, x, y, outer, inner, n, tall, k, wide};
    if (y != into)
      for (int64_t i = n; i < n + tall; ++i)
        fill(y + i * inner + k, wide, [&](auto at) { return at(into + i * inner + k); });
    int32_t ends[kRowsHeld];
    int64_t held = 0, sequences = 0, begin = 0;
    const auto add_held = [&] {
      if (sequences) add_sequences(block, begin, ends, sequences, scratch);
      held = sequences = 0;
    };
    each_sequence(segments, batch, tokens ? tokens + from : nullptr, rows, [&](int64_t first, int64_t count) {
      if (!count) return;
      if (held + count > kRowsHeld) add_held();
      if (count > kMostRows) return add_long(block, first, count, scratch);
      if (!sequences) begin = first;
      ends[sequences++] = static_cast<int32_t>(held += count);
    });
    add_held();
  }
}

}  // namespace weft::ISA
