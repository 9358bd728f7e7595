// round_rows: float32 to bfloat16, nearest even, subnormal numbers to zero; split: also the remainders.
//
// Meaning  weft/ops/matmul.py
// Layout   x float32 [rows, K], y bfloat16 [rows, K] or, split, [rows, 2 K]: rounded values, then rounded remainders
// Method   16 elements at a time
// Bound    memory, 6 or 8 bytes per element
#include "kernels/round_bf16.h"
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(round_rows) {
  const float* x = call.in[0].as<float>();
  uint16_t* y = call.out[0].as<uint16_t>();
  if (call.flag("split")) {
    const int64_t depth = call.in[0].cols();
    deal_rows(worker, call.in[0].rows(), depth, [&](int64_t row) {
      uint16_t* to = y + row * 2 * depth;
      for (int64_t k = 0; k < depth; k += 16) store_split(to + k, to + depth + k, load_n(x + row * depth + k, depth - k), depth - k);
    });
    return;
  }
  deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
    int64_t i = first;
    for (; i + 16 <= first + count; i += 16) store_rounded(y + i, load(x + i));
    for (; i < first + count; ++i) y[i] = float_to_bf16_normal(x[i]);
  });
}

}  // namespace weft::ISA
