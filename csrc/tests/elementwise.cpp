// The elementwise ops at every level agree with double precision, in place too, whatever the length and alignment.
#include "core/words.h"
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

static double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::none: return x;
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::relu: return x > 0 ? x : 0;
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::softplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    case Activation::relu2: return x > 0 ? x * x : 0;
    case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
  }
  return 0;
}

TEST(add_and_mul_take_an_equal_shape_or_one_row) {
  for (int64_t dim : {1, 15, 16, 17, 65, 5000})
    for (int shift : {0, 1}) {
      Floats x = normal({3, dim}, 1, shift), y = normal({3, dim}, 2, shift), row = normal({dim}, 3, shift);
      const size_t n = x.size(), d = static_cast<size_t>(dim);
      std::vector<Operand> equal{x.operand(), y.operand()}, one{x.operand(), row.operand()};
      check_op("add", equal, {3, dim}, shift, {}, map(n, [&](size_t i) { return double(x[i]) + y[i]; }), 1e-7);
      check_op("mul", equal, {3, dim}, shift, {}, map(n, [&](size_t i) { return double(x[i]) * y[i]; }), 1e-7);
      check_op("add", one, {3, dim}, shift, {}, map(n, [&](size_t i) { return double(x[i]) + row[i % d]; }), 1e-7);
      check_op("mul", one, {3, dim}, shift, {}, map(n, [&](size_t i) { return double(x[i]) * row[i % d]; }), 1e-7);
      check_op("scale", {x.operand()}, {3, dim}, shift, {{"by", 0.3}},
               map(n, [&](size_t i) { return double(x[i]) * 0.3; }), 1e-7);
    }
}

TEST(activations_agree_with_double_precision) {
  for (int kind = 0; kind <= static_cast<int>(Activation::quick_gelu); ++kind)
    for (int64_t count : {1, 17, 9001}) {
      Floats x = normal({count}, 4, 1, 4.0f), up = normal({count}, 5);
      auto act = [&](size_t i) { return activation(static_cast<Activation>(kind), x[i]); };
      check_op("activate", {x.operand()}, {count}, 1, {{"kind", double(kind)}}, map(x.size(), act), 3e-7);
      check_op("gated", {x.operand(), up.operand()}, {count}, 1, {{"kind", double(kind)}},
               map(x.size(), [&](size_t i) { return act(i) * up[i]; }), 3e-7);
    }
}

TEST(a_clamped_gate_agrees_with_double_precision) {
  for (int64_t count : {1, 17, 9001}) {
    Floats gate = normal({count}, 6, 1, 6.0f), up = normal({count}, 7, 0, 6.0f);
    const auto want = map(gate.size(), [&](size_t i) {
      const double g = std::min(double(gate[i]), 7.0), u = std::clamp(double(up[i]), -7.0, 7.0);
      return (u + 1) * g / (1 + std::exp(-1.702f * g));
    });
    check_op("gated_clamped", {gate.operand(), up.operand()}, {count}, 1, {{"limit", 7}, {"alpha", 1.702f}}, want, 5e-7);
  }
}

TEST(activations_reach_their_limits) {
  const float inf = INFINITY;
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    auto run = [&](Activation kind, float value) {
      Floats x({1}), y({1});
      x[0] = value;
      run_kernel(level, "activate", {x.operand()}, {y.operand()}, {{"kind", double(static_cast<int>(kind))}});
      return y[0];
    };
    CHECK(run(Activation::tanh, inf) == 1 && run(Activation::tanh, -inf) == -1 && run(Activation::tanh, 0) == 0);
    CHECK(run(Activation::sigmoid, inf) == 1 && run(Activation::sigmoid, -inf) == 0);
    CHECK(run(Activation::sigmoid, 0) == 0.5f);
    CHECK(run(Activation::gelu, 100) == 100 && run(Activation::gelu, -100) == 0 && run(Activation::gelu, inf) == inf);
    CHECK(run(Activation::gelu_tanh, 100) == 100 && run(Activation::gelu_tanh, -100) == 0);
    CHECK(run(Activation::silu, 200) == 200 && run(Activation::silu, -200) == 0);
    CHECK(run(Activation::quick_gelu, 200) == 200 && run(Activation::quick_gelu, -200) == 0);
    CHECK(run(Activation::softplus, 200) == 200 && run(Activation::softplus, -200) == 0);
    CHECK(run(Activation::softplus, inf) == inf && run(Activation::softplus, -inf) == 0);
    CHECK(std::abs(run(Activation::softplus, -20) / std::log1p(std::exp(-20.0)) - 1) < 4e-7);
    CHECK(run(Activation::relu2, -3) == 0 && run(Activation::relu2, 3) == 9);
    CHECK(run(Activation::relu, -3) == 0 && run(Activation::relu, 3) == 3);
    CHECK(std::abs(run(Activation::tanh, 1e-4f) / std::tanh(1e-4) - 1) < 2e-7);
    for (int kind = 1; kind <= static_cast<int>(Activation::quick_gelu); ++kind)
      CHECK(std::isnan(run(static_cast<Activation>(kind), NAN)));
  }
}

TEST(softcap_agrees_with_double_precision_and_never_passes_its_cap) {
  for (int64_t count : {1, 17, 9001})
    for (double cap : {0.5, 30.0}) {
      Floats x = normal({count}, 6, 1, 40.0f);
      check_op("softcap", {x.operand()}, {count}, 1, {{"cap", cap}},
               map(x.size(), [&](size_t i) { return cap * std::tanh(x[i] / cap); }), 3e-7);
    }
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats x({3}), y({3});
    x[0] = INFINITY, x[1] = -1e30f, x[2] = 0;
    run_kernel(level, "softcap", {x.operand()}, {y.operand()}, {{"cap", 30.0}});
    CHECK(y[0] == 30 && y[1] == -30 && y[2] == 0);
  }
}

TEST(elementwise_ops_work_in_place) {
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats x = normal({7, 37}, 6), y = normal({37}, 7), apart({7, 37});
    run_kernel(level, "mul", {x.operand(), y.operand()}, {apart.operand()}, {}, 2);
    run_kernel(level, "mul", {x.operand(), y.operand()}, {x.operand()}, {}, 2);
    CHECK(same_bits(x, apart));
  }
}
