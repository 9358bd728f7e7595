// add_rms_norm_a8: s = x + y, the new residual, and rms_norm(s) to rows of int8 blocks with a scale each.
//
// Meaning  weft/ops/quant.py
// Layout   x, y, s [rows, K] contiguous; w [K]; out rows of K / block blocks A8<32> or A8<256> (matmul_a8.h); s may be
//          x or y
// Method   the sum in one pass, then rms_norm_a8 of the row while it is in L1
// Bound    memory, 13 bytes per element
#include "kernels/norm.h"
#include "kernels/quantise_block.h"

namespace weft::ISA {

KERNEL(add_rms_norm_a8) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols(), block = call.integer("block");
  const float *x = call.in[0].as<float>(), *y = call.in[1].as<float>(), *weight = call.in[2].as<float>();
  float* s = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  by_block(call.out[1], block, [&](auto* out) {
    deal_rows(worker, rows, dim, [&](int64_t row) {
      const int64_t at_row = row * dim;
      fill(s + at_row, dim, [&](auto at) { return at(x + at_row) + at(y + at_row); });
      const float* from = s + at_row;
      const f32x16 scale = rms_scale(from, dim, eps);
      quantise_blocks(out + at_row / block, dim / block, [=](int64_t i) { return load(from + i) * scale * load(weight + i); });
    });
  });
}

}  // namespace weft::ISA
