// gated_back: the gradients of kind(gate) * up: grad * up * kind'(gate), and grad * kind(gate).
//
// Meaning  weft/ops/backward.py
// Layout   grad, gate, up and both results contiguous, one shape; the first may be grad or gate, the second up
// Method   flat vectors, both results from one load
// Bound    arithmetic: 50 to 100 instructions for 16 elements
#include "kernels/rows.h"
#include "kernels/slopes.h"

namespace weft::ISA {

KERNEL(gated_back) {
  const float *grad = call.in[0].as<float>(), *gate = call.in[1].as<float>(), *up = call.in[2].as<float>();
  float *to_gate = call.out[0].as<float>(), *to_up = call.out[1].as<float>();
  with_activation(static_cast<Activation>(call.integer("kind")), [&](auto kind) {
    deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; i += 16) {
        const int64_t n = smaller(16, first + count - i);
        const f32x16 g = load_n(grad + i, n), x = load_n(gate + i, n), u = load_n(up + i, n);
        store_n(to_gate + i, g * u * slope<kind()>(x), n);
        store_n(to_up + i, g * activate<kind()>(x), n);
      }
    });
  });
}

}  // namespace weft::ISA
