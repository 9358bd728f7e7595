// combine: y[t] = the sum of weights[t, k] x[places[t, k]] over k, plus share[t] shared[t].
//
// Meaning  weft/ops/experts.py
// Layout   x f32 [R, D], places i32 and weights f32 [T, top], shared f32 [T, D] and share f32 [T, 1] or both absent,
//          y f32 [T, D] contiguous; y is not x
// Method   per element one fma chain over k, in the order of the choices, and the shared one last
// Bound    memory, 4 (top + 1) bytes per element
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(combine) {
  const int64_t tokens = call.out[0].rows(), dim = call.out[0].cols(), top = call.in[1].cols();
  const float *x = call.in[0].as<float>(), *weights = call.in[2].as<float>();
  const int32_t* places = call.in[1].as<int32_t>();
  const float* shared = call.n_in > 4 ? call.in[3].as<float>() : nullptr;
  const float* share = call.n_in > 4 ? call.in[4].as<float>() : nullptr;
  float* y = call.out[0].as<float>();
  deal_rows(worker, tokens, dim * top, [&](int64_t t) {
    const int32_t* from = places + t * top;
    const float* weight = weights + t * top;
    fill(y + t * dim, dim, [&](auto at) {
      f32x16 total = zero();
      for (int64_t k = 0; k < top; ++k) total = fma(at(x + from[k] * dim), splat(weight[k]), total);
      return shared ? fma(at(shared + t * dim), splat(share[t]), total) : total;
    });
  });
}

}  // namespace weft::ISA
