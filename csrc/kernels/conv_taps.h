// conv_taps: the taps of a causal convolution, widened, for a block of channels.
#pragma once
#include "core/weight.h"
#include "simd/simd.h"

namespace weft::ISA {

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kChannels = 128;  // of a task

// The taps of `count` channels from `first` on, widened, as [W, kChannels].
void lay_taps(const Operand& weight, int64_t first, int64_t count, int64_t width, float* taps) {
  for (int64_t c = 0; c < count; ++c) {
    const int64_t row = (first + c) * width;
    float wide[kLanes];
    const float* from = wide;
    if (weight.dtype == DType::f32)
      from = weight.as<float>() + row;
    else if (weight.dtype == DType::f16)
      store(wide, load_f16_n(weight.as<uint16_t>() + row, width));
    else
      store(wide, load_bf16_n(weight.as<uint16_t>() + row, width));
    for (int64_t j = 0; j < width; ++j) taps[j * kChannels + c] = from[j];
  }
}

}  // namespace

}  // namespace weft::ISA
