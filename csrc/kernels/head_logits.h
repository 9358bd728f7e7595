// What head_loss and head_distill share: logits of a block of words for the rows of a task, in scratch.
#pragma once

#include "kernels/strips.h"
#include "kernels/weight_rows.h"

namespace weft::ISA {

constexpr int64_t kMostRows = 256, kWords = WeightRows::kTileRows;  // of a task, and of a block

struct Head {
  const Weight& weight;
  f32x16 scale, cap;
  bool capped;
  float* logits;  // [kMostRows, kWords]
  std::byte* scratch;

  // Logits of the words from `first` on, for `rows` rows of x.
  WEFT_INLINE void compute(const float* x, int64_t rows, int64_t first, int64_t count) const {
    const int64_t depth = weight.cols;
    const Product a{nullptr, nullptr, weight.dtype, weight.layout, weight.data, depth, weight.rows, scratch};
    for (int64_t w = 0; w < count; w += 16 * kPanels) {
      const int64_t panels = smaller(kPanels, parts(count - w, 16));
      for (int64_t k = 0; k < depth; k += kDepth) {
        Block<float> b{x + k, depth, nullptr, 0, smaller(kDepth, depth - k), logits + w, kWords, count - w, k == 0};
        fetch_panels(a, (first + w) / 16, panels, k, b);
        tile_rows(b, rows, panels);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* row = logits + r * kWords;
      fill(row, count, [&](auto at) {
        const f32x16 raw = at(row) * scale;
        return capped ? cap * tanh(raw / cap) : raw;
      });
    }
  }
};

}  // namespace weft::ISA
