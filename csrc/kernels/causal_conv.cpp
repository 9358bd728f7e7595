// causal_conv: y = bias + sum over j of weight[c, j] * x[t - width + 1 + j], channel by channel; earlier x from the state.
//
// Meaning  weft/ops/recurrent.py
// Layout   x, y [T, C] contiguous f32; weight [C, W] or [C, 1, W] rows of f32, f16 or bf16; bias [C] or absent; state [W-1, C], oldest input first
// Method   a task is 16 channels of one sequence; taps are added oldest first, so no split of a text changes a bit
// Bound    memory: 8 bytes per element, W multiply-adds beside them
#include "core/state.h"
#include "core/weight.h"
#include "simd/simd.h"

namespace weft::ISA {

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kMaxWidth = 16;  // weft/ops/recurrent.py: MAX_WIDTH

// The channels from `first` on: `count` of them, 16 at most.
struct Channels {
  const float* x;
  float* y;
  int64_t channels, first, count, width;

  f32x16 row(int64_t token) const { return load_n(x + token * channels + first, count); }
};

// The taps of channel `row`, widened.
f32x16 taps_of(const Operand& weight, int64_t row, int64_t width) {
  if (weight.dtype == DType::f32) return load_n(weight.as<float>() + row * width, width);
  const uint16_t* halves = weight.as<uint16_t>() + row * width;
  return weight.dtype == DType::f16 ? load_f16_n(halves, width) : load_bf16_n(halves, width);
}

}  // namespace

KERNEL(causal_conv) {
  const int64_t channels = call.in[0].dim[1], width = call.in[1].cols();
  const float* bias = call.in[5].as<float>();
  const SlotState& state = *call.in[2].slots;
  const int32_t *slots = call.in[3].as<int32_t>(), *segments = call.in[4].as<int32_t>();
  const int64_t sequences = call.in[3].dim[0], blocks = (channels + kLanes - 1) / kLanes;
  Channels at{call.in[0].as<float>(), call.out[0].as<float>(), channels, 0, 0, width};
  for (int64_t task; (task = worker.next(sequences * blocks)) < sequences * blocks;) {
    const int64_t sequence = task / blocks;
    at.first = task % blocks * kLanes;
    at.count = channels - at.first < kLanes ? channels - at.first : kLanes;
    float taps[kMaxWidth * kLanes] = {};
    for (int64_t c = 0; c < at.count; ++c) {
      float row[kLanes];
      store(row, taps_of(call.in[1], at.first + c, width));
      for (int64_t j = 0; j < width; ++j) taps[j * kLanes + c] = row[j];
    }
    f32x16 seen[kMaxWidth];  // the last width inputs, oldest first
    const int64_t source = slots[2 * sequence], target = slots[2 * sequence + 1];
    for (int64_t j = 0; j + 1 < width; ++j)
      seen[j] = source < 0 ? zero() : load_n(state.slot(source) + j * channels + at.first, at.count);
    const f32x16 start = bias ? load_n(bias + at.first, at.count) : zero();
    for (int64_t token = segments[sequence]; token < segments[sequence + 1]; ++token) {
      seen[width - 1] = at.row(token);
      f32x16 sum = start;
      for (int64_t j = 0; j < width; ++j) sum = fma(load(taps + j * kLanes), seen[j], sum);
      store_n(at.y + token * channels + at.first, sum, at.count);
      for (int64_t j = 0; j + 1 < width; ++j) seen[j] = seen[j + 1];
    }
    for (int64_t j = 0; j + 1 < width; ++j)
      store_n(state.slot(target) + j * channels + at.first, seen[j], at.count);
  }
}

}  // namespace weft::ISA
