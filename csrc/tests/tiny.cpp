// A small network agrees with double precision at every level, and a row has the same bits alone, among others, with zeros left out,
// and for every team; int8 stays within its steps.
#include "tiny/net.h"

#include <cmath>

#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

static double by_definition(TinyActivation kind, double v, double slope) {
  switch (kind) {
    case TinyActivation::sigmoid: return 1 / (1 + std::exp(-v));
    case TinyActivation::tanh: return std::tanh(v);
    case TinyActivation::relu: return v > 0 ? v : 0;
    case TinyActivation::leaky_relu: return v > 0 ? v : slope * v;
    case TinyActivation::gelu: return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    default: return v;
  }
}

static std::vector<double> plain(const std::vector<TinyGiven>& layers, const float* x, double temperature) {
  std::vector<double> values(x, x + layers[0].inputs);
  for (const TinyGiven& layer : layers) {
    std::vector<double> next;
    for (int64_t i = 0; i < layer.outputs; ++i) {
      double total = layer.bias[i];
      for (int64_t k = 0; k < layer.inputs; ++k) total += double{layer.weight[i * layer.inputs + k]} * values[static_cast<size_t>(k)];
      next.push_back(by_definition(layer.activation, total, layer.slope));
    }
    values = next;
  }
  if (layers.back().activation != TinyActivation::softmax) return values;
  double most = *std::max_element(values.begin(), values.end()), total = 0;
  for (double& value : values) total += value = std::exp((value - most) / temperature);
  for (double& value : values) value /= total;
  return values;
}

TEST(tiny_forward_at_every_level) {
  Pool one(1), three(3);
  for (int kind = 0; kind < kTinyActivations; ++kind)
    for (int64_t wide : {1, 15, 37, 130}) {
      const auto last = static_cast<TinyActivation>(kind);
      const auto inner = last == TinyActivation::softmax ? TinyActivation::relu : last;
      const int64_t inputs = 2 * wide + 1, outputs = 5, rows = 131;
      const Floats w1 = normal({wide, inputs}, 1, 1, 0.2f), b1 = normal({wide}, 2), w2 = normal({outputs, wide}, 3, 3, 0.3f), b2 = normal({outputs}, 4);
      const std::vector<TinyGiven> layers = {{inputs, wide, inner, 0.1f, w1.data(), b1.data()}, {wide, outputs, last, 0.1f, w2.data(), b2.data()}};
      Floats x = normal({rows, inputs}, 5, 2);
      for (size_t i = 0; i < x.size(); ++i)
        if (i % 3 != 0 && i / static_cast<size_t>(inputs) % 2) x[i] = i % 2 ? 0.0f : -0.0f;  // every other row is mostly zeros
      for (const Level& level : levels()) {
        if (!level.present()) continue;
        for (bool int8 : {false, true}) {
          TinyNet net(level, layers, 1.5f, int8);
          std::vector<float> out(static_cast<size_t>(rows * outputs)), again(out.size()), single(static_cast<size_t>(outputs));
          CHECK(net.rows(x.data(), rows, false, out.data(), one) == -1);
          CHECK(net.rows(x.data(), rows, false, again.data(), three) == -1);
          CHECK(std::memcmp(out.data(), again.data(), out.size() * sizeof(float)) == 0);
          for (int64_t row = 0; row < rows; ++row) {
            CHECK(net.row(x.data() + row * inputs, single.data()));
            CHECK(std::memcmp(out.data() + row * outputs, single.data(), single.size() * sizeof(float)) == 0);
            const std::vector<double> wanted = plain(layers, x.data() + row * inputs, 1.5);
            for (size_t i = 0; i < wanted.size(); ++i)
              CHECK(std::abs(single[i] - wanted[i]) < (int8 ? 0.25 : 2e-5) * (1 + std::abs(wanted[i])));
          }
        }
      }
    }
}

TEST(tiny_rows_that_are_not_finite_are_named) {
  const Floats w = normal({3, 40}, 1), b = normal({3}, 2);
  TinyNet net(levels().front(), {{40, 3, TinyActivation::softmax, 0, w.data(), b.data()}}, 1, false);
  Pool pool(3);
  for (float wrong : {NAN, INFINITY, -INFINITY}) {
    Floats x = normal({700, 40}, 3);
    x[500 * 40 + 39] = x[613 * 40] = wrong;
    std::vector<float> out(2100);
    CHECK(net.rows(x.data(), 700, false, out.data(), pool) == 500);
    CHECK(!net.row(x.data() + 500 * 40, out.data()));
    CHECK(net.row(x.data() + 499 * 40, out.data()));
  }
}
