// rms_norm_a8: rms_norm(x) to rows of int8 blocks with a scale each.
//
// Meaning  weft/ops/quant.py
// Layout   x [rows, K] contiguous; w [K]; out rows of K / block blocks A8<32> or A8<256> (matmul_a8.h)
// Method   the sum of squares in one pass, then norm and codes block by block
// Bound    memory, 5 bytes per element (the second read of x is in L1)
#include "kernels/norm.h"
#include "kernels/quantise_block.h"

namespace weft::ISA {

KERNEL(rms_norm_a8) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols(), block = call.integer("block");
  const float *x = call.in[0].as<float>(), *weight = call.in[1].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  by_block(call.out[0], block, [&](auto* out) {
    deal_rows(worker, rows, dim, [&](int64_t row) {
      const float* from = x + row * dim;
      const f32x16 scale = rms_scale(from, dim, eps);
      quantise_blocks(out + row * dim / block, dim / block, [=](int64_t i) { return load(from + i) * scale * load(weight + i); });
    });
  });
}

}  // namespace weft::ISA
