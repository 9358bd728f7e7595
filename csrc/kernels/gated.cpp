// gated: out = kind(gate) * up, the gate of SwiGLU and its relatives.
//
// Meaning  weft/ops/elementwise.py
// Layout   gate, up, out contiguous, one shape; out may be gate or up
// Method   flat vectors; the functions are those of simd/math.h
// Bound    arithmetic: 20 to 40 instructions for 16 elements
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(gated) {
  const float *gate = call.in[0].as<float>(), *up = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  with_activation(static_cast<Activation>(call.integer("kind")), [&](auto kind) {
    deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
      fill(out + first, count, [&](auto at) { return activate<kind()>(at(gate + first)) * at(up + first); });
    });
  });
}

}  // namespace weft::ISA
