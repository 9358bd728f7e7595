// rope_back: channels turned back: rope with sines of the other sign.
//
// Meaning  weft/ops/backward.py
// Layout   grad, y [T, H, D] contiguous; positions i32 [T]; inv_freq f32 [R], 2R <= D; y may be grad
// Method   as rope
// Bound    memory, 8 bytes per element
#include "kernels/rows.h"
#include "kernels/sine.h"
#include "kernels/turning.h"

namespace weft::ISA {

KERNEL(rope_back) {
  const int64_t tokens = call.in[0].dim[0], heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const int64_t pairs = call.in[2].cols();
  const float *grad = call.in[0].as<float>(), *inv_freq = call.in[2].as<float>();
  const int32_t* positions = call.in[1].as<int32_t>();
  float* y = call.out[0].as<float>();
  const Turning turning{dim, pairs, call.flag("interleaved")};
  const float scale = static_cast<float>(call.number("scale"));
  float *cosine = reinterpret_cast<float*>(worker.scratch), *sine = cosine + pairs;
  deal_rows(worker, tokens, heads * dim, [&](int64_t token) {
    cosines_and_sines(static_cast<float>(positions[token]), inv_freq, pairs, scale, cosine, sine);
    for (int64_t i = 0; i < pairs; ++i) sine[i] = -sine[i];
    for (int64_t at = token * heads * dim; at < (token + 1) * heads * dim; at += dim)
      turning.head(y + at, grad + at, cosine, sine);
  });
}

}  // namespace weft::ISA
