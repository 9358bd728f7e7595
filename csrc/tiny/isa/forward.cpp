// forward: a few dense layers, one after another, for a row or a block of rows.
//
// Meaning  weft/tiny/layers.py: activation(x W^T + bias), a softmax at the end
// Layout   x [rows, inputs] contiguous; between layers rows are padded to whole vectors
// Method   float32: register tiles over panels, sums over k in order; for one row with many zeros those are left out, which
//          changes no bit. int8: a row is rounded to 127 steps of its largest number, products are exact integers
// Bound    one row: reading W from the second cache; many rows: multiplications
#include "kernels/float_tiles.h"
#include "kernels/matmul_ints.h"
#include "tiny/kernels.h"
#include "vectors/isa/table.h"

namespace weft::ISA {
namespace {

constexpr int kPanelsAtOnce = 4;  // of a row whose zeros are left out

template <int P>
WEFT_INLINE void add_places(const float* x, const int32_t* places, int64_t count, const float* w, int64_t stride, float* y) {
  f32x16 acc[P];
  _Pragma("GCC unroll 8") for (int p = 0; p < P; ++p) acc[p] = zero();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = places[i];
    const f32x16 value = splat(x[k]);
    _Pragma("GCC unroll 8") for (int p = 0; p < P; ++p) acc[p] = fma(value, load(w + p * stride + k * 16), acc[p]);
  }
  _Pragma("GCC unroll 8") for (int p = 0; p < P; ++p) store(y + p * 16, acc[p]);
}

// One row, by the places of its numbers that are not zero.
void sparse_row(const TinyLayer& layer, const float* x, int32_t* places, float* y) {
  int64_t count = 0;
  for (int64_t k = 0; k < layer.inputs; ++k) {
    places[count] = static_cast<int32_t>(k);
    count += x[k] != 0.0f;
  }
  const int64_t panels = tiny_padded(layer.outputs) / 16, stride = layer.inputs * 16;
  int64_t p = 0;
  for (; p + kPanelsAtOnce <= panels; p += kPanelsAtOnce)
    add_places<kPanelsAtOnce>(x, places, count, layer.panels + p * stride, stride, y + p * 16);
  for (; p < panels; ++p) add_places<1>(x, places, count, layer.panels + p * stride, stride, y + p * 16);
}

WEFT_INLINE float not_zero(const float* x, int64_t n) {
  return sum(fold(n, zero(), [=](auto at, f32x16 acc) { return acc + where_less(zero(), abs(at(x)), splat(1.0f), zero()); }));
}

void float_products(const TinyLayer& layer, const float* x, int64_t x_stride, int64_t rows, const TinyRoom& room, float* y) {
  const int64_t width = tiny_padded(layer.outputs), panels = width / 16, depth = layer.inputs;
  if (rows == 1) {
    if (layer.skips_zeros && 4 * static_cast<int64_t>(not_zero(x, depth)) <= 3 * depth) return sparse_row(layer, x, room.places, y);
    return single_row<float>({x, x_stride, layer.panels, depth * 16, depth, y, width, width, true}, panels);
  }
  for (int64_t panel = 0; panel < panels; panel += kPanels)
    for (int64_t k = 0; k < depth; k += kDepth) {
      Block<float> b{x + k, x_stride, layer.panels + (panel * depth + k) * 16, depth * 16, smaller(kDepth, depth - k),
                     y + panel * 16, width, width - panel * 16, k == 0, true};
      tile_rows(b, rows, smaller(kPanels, panels - panel));
    }
}

// The row in int8, and what a step stands for; NaN where a number is none.
float to_codes(const float* x, int64_t n, int8_t* codes) {
  const f32x16 top = fold(n, zero(), [=](auto at, f32x16 acc) { return max(acc, abs(at(x))); });
  const float most = max_lane(top), scale = most * (1.0f / 127.0f);
  const int64_t padded = tiny_code_bytes(n);
  if (!(most < __builtin_inff()) || scale == 0.0f) {
    for (int64_t i = 0; i < padded; ++i) codes[i] = 0;
    return most == 0.0f || scale == 0.0f ? 0.0f : __builtin_nanf("");
  }
  const f32x16 by = splat(127.0f / most);  // times the largest number, this rounds to 127
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_i8(codes + i, load(x + i) * by);
  if (i < n) store_i8(codes + i, load_n(x + i, n - i) * by), i += 16;
  for (; i < padded; ++i) codes[i] = 0;
  return scale;
}

void int_products(const TinyLayer& layer, const float* x, int64_t x_stride, int64_t rows, const TinyRoom& room, float* y) {
  const int64_t width = tiny_padded(layer.outputs), bytes = tiny_code_bytes(layer.inputs);
  for (int64_t row = 0; row < rows; ++row, x += x_stride, y += width) {
    const float scale = to_codes(x, layer.inputs, room.codes);
    i8_dot(room.codes, reinterpret_cast<const std::byte*>(layer.codes), bytes, layer.outputs, bytes, room.sums);
    for (int64_t i = 0; i < layer.outputs; ++i) y[i] = static_cast<float>(room.sums[i]) * (layer.scales[i] * scale);
    for (int64_t i = layer.outputs; i < width; ++i) y[i] = 0;
  }
}

void softmax_row(float* y, int64_t n, float temperature) {
  const f32x16 lowest = splat(-__builtin_inff()), by = splat(temperature);
  fill(y, n, [&](auto at) { return at(y) / by; });
  const f32x16 top = splat(max_lane(fold(n, lowest, [&](auto at, f32x16 acc) { return max(acc, at.or_else(at(y), lowest)); })));
  fill(y, n, [&](auto at) { return exp_negative(at(y) - top); });
  const f32x16 total = splat(sum(fold(n, zero(), [&](auto at, f32x16 acc) { return acc + at(y); })));
  fill(y, n, [&](auto at) { return at(y) / total; });
}

template <class F>
WEFT_INLINE void each_vector(const TinyLayer& layer, int64_t rows, float* y, F f) {
  const int64_t width = tiny_padded(layer.outputs);
  for (int64_t row = 0; row < rows; ++row, y += width)
    for (int64_t i = 0; i < width; i += 16) store(y + i, f(load(y + i) + load(layer.bias + i)));
}

void finish_layer(const TinyLayer& layer, bool raw, float temperature, int64_t rows, float* y) {
  const auto with = [&](auto f) __attribute__((always_inline)) { each_vector(layer, rows, y, f); };
  if (raw) return with([](f32x16 v) { return v; });
  switch (layer.activation) {
    case TinyActivation::sigmoid: return with([](f32x16 v) { return sigmoid(v); });
    case TinyActivation::tanh: return with([](f32x16 v) { return tanh(v); });
    case TinyActivation::relu: return with([](f32x16 v) { return relu(v); });
    case TinyActivation::gelu: return with([](f32x16 v) { return gelu(v); });
    case TinyActivation::leaky_relu: {
      const f32x16 slope = splat(layer.slope);
      return with([=](f32x16 v) { return where_less(zero(), v, v, slope * v); });
    }
    case TinyActivation::linear: return with([](f32x16 v) { return v; });
    case TinyActivation::softmax: break;
  }
  with([](f32x16 v) { return v; });
  for (int64_t row = 0; row < rows; ++row) softmax_row(y + row * tiny_padded(layer.outputs), layer.outputs, temperature);
}

WEFT_INLINE bool finite_row(const float* x, int64_t n) {  // x - x is zero, or NaN
  return sum(fold(n, zero(), [=](auto at, f32x16 acc) { return acc + (at(x) - at(x)); })) == 0.0f;
}

int64_t forward(const TinyLayer* layers, int64_t count, bool raw, float temperature, const float* x, int64_t rows,
                const TinyRoom& room, float* out) {
  int64_t stride = layers[0].inputs;
  for (int64_t row = 0; row < rows; ++row)
    if (!finite_row(x + row * stride, stride)) return row;
  float *from = room.from, *to = room.to;
  for (int64_t i = 0; i < count; ++i) {
    const TinyLayer& layer = layers[i];
    (layer.codes ? int_products : float_products)(layer, x, stride, rows, room, to);
    finish_layer(layer, raw && i + 1 == count, temperature, rows, to);
    x = to, stride = tiny_padded(layer.outputs);
    float* next = from;
    from = to, to = next;
  }
  const int64_t outputs = layers[count - 1].outputs;
  for (int64_t row = 0; row < rows; ++row)
    fill(out + row * outputs, outputs, [&](auto at) { return at(x + row * stride); });
  return -1;
}

}  // namespace

extern const TinyKernels tiny_kernels;
const TinyKernels tiny_kernels = {&forward};

}  // namespace weft::ISA
