// rope_turn: the first 2R channels of every head turned by the cosines and sines of its token.
//
// Meaning  weft/ops/rope.py
// Layout   x, y [T, H, D] contiguous; table [T, 2R], cosines and then sines, 2R <= D; y may be x
// Method   token by token, so that its part of the table is in L1 for all heads
// Bound    memory, 8 bytes per element
#include "kernels/turning.h"

namespace weft::ISA {

KERNEL(rope_turn) {
  const int64_t tokens = call.in[0].dim[0], heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const int64_t pairs = call.in[1].cols() / 2;
  const float *x = call.in[0].as<float>(), *table = call.in[1].as<float>();
  float* y = call.out[0].as<float>();
  const Turning turning{dim, pairs, call.flag("interleaved")};
  deal_rows(worker, tokens, heads * dim, [&](int64_t token) {
    const float *cosine = table + token * 2 * pairs, *sine = cosine + pairs;
    for (int64_t at = token * heads * dim; at < (token + 1) * heads * dim; at += dim)
      turning.head(y + at, x + at, cosine, sine);
  });
}

}  // namespace weft::ISA
