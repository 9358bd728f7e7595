// round_rows: float32 to bfloat16, nearest even, subnormal numbers to zero.
//
// Meaning  weft/ops/matmul.py
// Layout   x float32, y bfloat16, contiguous, of one shape
// Method   16 elements at a time
// Bound    memory, 6 bytes per element
#include "kernels/round_bf16.h"
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(round_rows) {
  const float* x = call.in[0].as<float>();
  uint16_t* y = call.out[0].as<uint16_t>();
  deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
    int64_t i = first;
    for (; i + 16 <= first + count; i += 16) store_rounded(y + i, load(x + i));
    for (; i < first + count; ++i) y[i] = float_to_bf16_normal(x[i]);
  });
}

}  // namespace weft::ISA
