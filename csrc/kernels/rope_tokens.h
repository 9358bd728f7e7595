// rope_tokens: every token's heads turned by its position, forwards or back: rope and its gradient.
#pragma once
#include "kernels/rows.h"
#include "kernels/sine.h"
#include "kernels/turning.h"

namespace weft::ISA {

WEFT_INLINE void rope_tokens(const Call& call, const Worker& worker, bool back) {
  const int64_t tokens = call.in[0].dim[0], heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const int64_t pairs = call.in[2].cols();
  const float *x = call.in[0].as<float>(), *inv_freq = call.in[2].as<float>();
  const int32_t* positions = call.in[1].as<int32_t>();
  float* y = call.out[0].as<float>();
  const Turning turning{dim, pairs, call.flag("interleaved")};
  const float scale = static_cast<float>(call.number("scale"));
  float *cosine = reinterpret_cast<float*>(worker.scratch), *sine = cosine + pairs;
  deal_rows(worker, tokens, heads * dim, [&](int64_t token) {
    cosines_and_sines(static_cast<float>(positions[token]), inv_freq, pairs, scale, cosine, sine);
    for (int64_t i = 0; back && i < pairs; ++i) sine[i] = -sine[i];
    for (int64_t at = token * heads * dim; at < (token + 1) * heads * dim; at += dim)
      turning.head(y + at, x + at, cosine, sine);
  });
}

}  // namespace weft::ISA
