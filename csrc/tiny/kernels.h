// kernels: the forward pass of a few dense layers, one per instruction-set level. The code behind it is csrc/tiny/isa.
#pragma once
#include "core/kernel.h"

namespace weft {

// In the order of weft/tiny/layers.py.
enum class TinyActivation : uint8_t { linear, sigmoid, tanh, relu, leaky_relu, gelu, softmax };
constexpr int kTinyActivations = 7;

// activation(x W^T + bias). W is float32 in panels of 16 outputs [panels][inputs][16], or int8 with a scale for each output.
struct TinyLayer {
  int64_t inputs, outputs;
  TinyActivation activation;
  float slope;          // of leaky_relu
  const float* panels;  // null where there are codes
  const int8_t* codes;  // [outputs][code_bytes]
  const float* scales;  // [outputs]
  const float* bias;    // as many as the panels have columns; no -0
  bool skips_zeros;     // W is finite: an input of zero adds nothing
};

constexpr int64_t tiny_padded(int64_t n) { return (n + 15) / 16 * 16; }
constexpr int64_t tiny_code_bytes(int64_t n) { return (n + 63) / 64 * 64; }

// Room for one worker: `rows` rows of the widest layer twice, and one row of codes, sums and places.
struct TinyRoom {
  float *from, *to;
  int8_t* codes;
  int32_t* sums;
  int32_t* places;
};

struct TinyKernels {
  // out [rows, outputs] of x [rows, inputs]; `rows` as many as there is room for. `raw`: without the last activation. A softmax
  // divides by `temperature` first. Returns the first row that has NaN or infinity, and has then computed none; else -1.
  int64_t (*forward)(const TinyLayer* layers, int64_t count, bool raw, float temperature, const float* x, int64_t rows,
                     const TinyRoom& room, float* out);
};

struct Level;
// Those of the level, or of the nearest lower one that has any.
const TinyKernels& tiny_kernels(const Level& level);

}  // namespace weft
