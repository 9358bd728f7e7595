// causal_conv_back: dx[t] = sum over j of weight[c, j] * grad[t + width - 1 - j], within each sequence.
//
// Meaning  weft/ops/recurrent_backward.py
// Layout   grad, dx [T, C] contiguous f32, not the same; weight [C, W] or [C, 1, W] rows of f32, f16 or bf16
// Method   a task is 128 channels of one sequence; its taps lie in the scratch tap by tap, and are added in order
// Bound    memory: 8 bytes per element, W multiply-adds beside them
#include "kernels/conv_taps.h"

namespace weft::ISA {

KERNEL(causal_conv_back) {
  const int64_t channels = call.in[0].dim[1], width = call.in[1].cols();
  const float* grad = call.in[0].as<float>();
  const int32_t* segments = call.in[2].as<int32_t>();
  const int64_t sequences = call.in[2].size() - 1, blocks = (channels + kChannels - 1) / kChannels;
  float *to_x = call.out[0].as<float>(), *taps = reinterpret_cast<float*>(worker.scratch);  // [W, kChannels]
  for (int64_t task; (task = worker.next(sequences * blocks)) < sequences * blocks;) {
    const int64_t sequence = task / blocks, first = task % blocks * kChannels;
    const int64_t count = channels - first < kChannels ? channels - first : kChannels;
    const int64_t begin = segments[sequence], end = segments[sequence + 1];
    lay_taps(call.in[1], first, count, width, taps);
    for (int64_t token = begin; token < end; ++token)
      for (int64_t c = 0; c < count; c += kLanes) {
        f32x16 sum = zero();
        for (int64_t j = width - 1; j >= 0 && token + width - 1 - j < end; --j)
          sum = fma(load(taps + j * kChannels + c), load_n(grad + (token + width - 1 - j) * channels + first + c, count - c), sum);
        store_n(to_x + token * channels + first + c, sum, count - c);
      }
  }
}

}  // namespace weft::ISA
