// quantise_rows: rows of floats to rows of int8 blocks with a scale each.
//
// Meaning  weft/ops/quant.py; docs/design/core.md has the formulas
// Layout   x [rows, K] contiguous; y rows of K / block blocks A8<32> or A8<256> (matmul_a8.h)
// Method   a block at a time: largest magnitude, scaling, rounding to nearest even, sums of 16
// Bound    memory, 5 bytes per element
#include "kernels/quantise_block.h"

namespace weft::ISA {

KERNEL(quantise_rows) {
  const float* x = call.in[0].as<float>();
  quantise_all(call, worker, [=](int64_t i) { return load(x + i); });
}

}  // namespace weft::ISA
