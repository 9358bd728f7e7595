// attention_bias: numbers added to scores by the distance from query to key, bias[buckets[distance]], and the logits of sinks.
#pragma once
#include "core/half.h"
#include "kernels/rows.h"

namespace weft::ISA {

// An optional operand of an attention; null where it is absent.
WEFT_INLINE const Operand* optional(const Call& call, int index) {
  return index < call.n_in && call.in[index].present() ? call.in + index : nullptr;
}

// The biases of the query heads that share a key/value head: one line a head, [line], by distance. Distances beyond
// `reach` have the bias of the reach; the ends of a line repeat it, so that any 16 neighbours are one load.
struct Lines {
  const Operand *bias = nullptr, *buckets = nullptr;
  int64_t share = 0, reach = 0, line = 0;
  float* first = nullptr;  // null: no bias
  int64_t before = 0;      // rows of the sequence before the task's first

  // Floats of scratch.
  WEFT_INLINE int64_t size() const { return share * line; }

  // One row's line: at(key) has the numbers of 16 keys from `key` on.
  struct Row {
    const float* middle;
    int64_t position, reach;
    WEFT_INLINE const float* at(int64_t key) const {
      return middle + larger(-reach - 16, smaller(reach, key - position));
    }
  };
  WEFT_INLINE Row row(int64_t index) const {
    const int64_t r = before + index;
    return {first + r % share * line + reach + 16, r / share, reach};
  }
};

WEFT_INLINE Lines lines_of(const Operand* bias, const Operand* buckets, int64_t share) {
  if (!bias || !buckets) return {};
  const int64_t reach = (buckets->cols() - 1) / 2;
  return {bias, buckets, share, reach, 2 * reach + 32};
}

// Fills the lines of a key/value head, times `by`.
[[maybe_unused]] static void fill_lines(const Lines& lines, int64_t kv_head, float by) {
  const int64_t heads = lines.bias->cols(), rows = lines.bias->rows();
  const float* buckets = lines.buckets->as<float>();
  for (int64_t i = 0; i < lines.share; ++i) {
    float* line = lines.first + i * lines.line;
    for (int64_t at = 0; at < lines.line; ++at) {
      const int64_t distance = larger(0, smaller(2 * lines.reach, at - 16));
      const int64_t bucket = larger(0, smaller(rows - 1, static_cast<int64_t>(buckets[distance])));
      const int64_t place = bucket * heads + kv_head * lines.share + i;
      float value;
      if (lines.bias->dtype == DType::f32) value = lines.bias->as<float>()[place];
      else if (lines.bias->dtype == DType::f16) value = half_to_float(lines.bias->as<uint16_t>()[place]);
      else value = bf16_to_float(lines.bias->as<uint16_t>()[place]);
      line[at] = value * by;
    }
  }
}

}  // namespace weft::ISA
