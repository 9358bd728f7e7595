// gated_a8: kind(gate) * up to rows of int8 blocks with a scale each.
//
// Meaning  weft/ops/quant.py
// Layout   gate, up [rows, K] contiguous; out rows of K / block blocks A8<32> or A8<256> (matmul_a8.h)
// Method   gated and quantise_rows, block by block: the products stay in registers, or in L1 where blocks are long
// Bound    arithmetic, as gated
#include "kernels/quantise_block.h"

namespace weft::ISA {

KERNEL(gated_a8) {
  const float *gate = call.in[0].as<float>(), *up = call.in[1].as<float>();
  with_activation(static_cast<Activation>(call.integer("kind")), [&](auto kind) {
    quantise_all(call, worker, [=](int64_t i) { return activate<kind()>(load(gate + i)) * load(up + i); });
  });
}

}  // namespace weft::ISA
