// activate_back: out = grad * kind'(x).
//
// Meaning  weft/ops/backward.py
// Layout   grad, x, out contiguous, one shape; out may be grad or x
// Method   flat vectors; the derivatives are those of slopes.h
// Bound    arithmetic: 20 to 60 instructions for 16 elements
#include "kernels/rows.h"
#include "kernels/slopes.h"

namespace weft::ISA {

KERNEL(activate_back) {
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  with_activation(static_cast<Activation>(call.integer("kind")), [&](auto kind) {
    deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
      fill(out + first, count, [&](auto at) { return at(grad + first) * slope<kind()>(at(x + first)); });
    });
  });
}

}  // namespace weft::ISA
