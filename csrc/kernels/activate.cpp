// activate: out = kind(x), one of the activations of core/words.h.
//
// Meaning  weft/ops/elementwise.py
// Layout   x, out contiguous, any shape; out may be x
// Method   flat vectors; the functions are those of simd/math.h
// Bound    arithmetic: 20 to 40 instructions for 16 elements
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(activate) {
  const float* x = call.in[0].as<float>();
  float* out = call.out[0].as<float>();
  with_activation(static_cast<Activation>(call.integer("kind")), [&](auto kind) {
    deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
      fill(out + first, count, [&](auto at) { return activate<kind()>(at(x + first)); });
    });
  });
}

}  // namespace weft::ISA
