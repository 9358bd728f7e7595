// causal_conv: y = bias + sum over j of weight[c, j] * x[t - width + 1 + j], channel by channel; earlier x from the state.
//
// Meaning  weft/ops/recurrent.py
// Layout   x, y [T, C] contiguous f32, not the same; weight [C, W] or [C, 1, W] rows of f32, f16 or bf16; bias [C] or absent; state
//          [W-1, C], oldest input first
// Method   a task is 128 channels of one sequence, so that a token's are several cache lines side by side; its taps lie in
//          the scratch tap by tap, and are added oldest first: no split of a text changes a bit
// Bound    memory: 8 bytes per element, W multiply-adds beside them
#include "core/state.h"
#include "kernels/conv_taps.h"

namespace weft::ISA {

KERNEL(causal_conv) {
  const int64_t channels = call.in[0].dim[1], width = call.in[1].cols();
  const float *x = call.in[0].as<float>(), *bias = call.in[5].as<float>();
  const SlotState* state = call.in[2].slots;  // null: whole texts, of which nothing is kept
  const int32_t *slots = call.in[3].as<int32_t>(), *segments = call.in[4].as<int32_t>();
  const int64_t sequences = call.in[4].size() - 1, blocks = (channels + kChannels - 1) / kChannels;
  float *y = call.out[0].as<float>(), *taps = reinterpret_cast<float*>(worker.scratch);  // [W, kChannels]
  float* nothing = taps + width * kChannels;                                              // zeros [kChannels]
  for (int64_t task; (task = worker.next(sequences * blocks)) < sequences * blocks;) {
    const int64_t sequence = task / blocks, first = task % blocks * kChannels;
    const int64_t count = channels - first < kChannels ? channels - first : kChannels;
    const int64_t source = state ? slots[2 * sequence] : -1;
    const int64_t begin = segments[sequence], end = segments[sequence + 1];
    lay_taps(call.in[1], first, count, width, taps);
    for (int64_t c = 0; c < kChannels; ++c) nothing[c] = 0;
    // The inputs of a token; those before the step's first are in the state.
    auto row = [&](int64_t token) -> const float* {
      if (token >= begin) return x + token * channels + first;
      return source < 0 ? nothing : state->slot(source) + (token - begin + width - 1) * channels + first;
    };
    for (int64_t token = begin; token < end; ++token) {
      float* out = y + token * channels + first;
      for (int64_t c = 0; c < count; c += kLanes) {
        f32x16 sum = bias ? load_n(bias + first + c, count - c) : zero();
        for (int64_t j = 0; j < width; ++j)
          sum = fma(load(taps + j * kChannels + c), load_n(row(token - width + 1 + j) + c, count - c), sum);
        store_n(out + c, sum, count - c);
      }
    }
    for (int64_t j = 0; state && j + 1 < width; ++j) {
      const float* kept = row(end - width + 1 + j);
      float* into = state->slot(slots[2 * sequence + 1]) + j * channels + first;
      for (int64_t c = 0; c < count; c += kLanes) store_n(into + c, load_n(kept + c, count - c), count - c);
    }
  }
}

}  // namespace weft::ISA
