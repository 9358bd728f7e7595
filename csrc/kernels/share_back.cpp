// share_back: grad[t] share[t], and the product of grad[t] and shared[t].
//
// Meaning  weft/ops/experts_backward.py
// Layout   grad, shared, to_shared [T, D], share, to_share [T, 1] contiguous f32
// Method   a row at a time; a product is 16 lane sums and the fixed tree
// Bound    memory, 12 bytes per element
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(share_back) {
  const int64_t dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *shared = call.in[1].as<float>(), *share = call.in[2].as<float>();
  float *to_shared = call.out[0].as<float>(), *to_share = call.out[1].as<float>();
  deal_rows(worker, call.in[0].rows(), dim, [&](int64_t t) {
    const float *row = grad + t * dim, *other = shared + t * dim;
    to_share[t] = sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return fma(at(row), at(other), acc); }));
    const f32x16 by = splat(share[t]);
    fill(to_shared + t * dim, dim, [&](auto at) { return at(row) * by; });
  });
}

}  // namespace weft::ISA
