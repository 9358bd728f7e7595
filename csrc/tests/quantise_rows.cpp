// quantise_rows follows the formulas of docs/design/core.md to the bit at every level, and the ops that quantise what they
// make have the bits of the two.
#include "kernels/matmul_a8.h"
#include "tests/arrays.h"
#include "tests/quantise_reference.h"

using namespace weft;
using namespace weft::test;

template <int block>
static void check_block(const std::vector<float>& x, int64_t rows, int64_t depth, int shift) {
  std::vector<A8<block>> want;
  for (size_t i = 0; i < x.size(); i += block) want.push_back(quantise_reference<block>(&x[i]));
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    for (int workers : {1, 3}) {
      const std::vector<A8<block>> got = quantise<block>(level, x, rows, depth, workers, shift);
      CHECK(got.size() == want.size());
      CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(A8<block>)) == 0);
    }
  }
}

TEST(quantise_rows_follows_the_formulas_at_every_level) {
  std::mt19937 random(7);
  for (int64_t rows : {1, 5})
    for (int64_t depth : {256, 768})
      for (int shift : {0, 1}) {
        std::vector<float> x = random_floats(static_cast<size_t>(rows * depth), random);
        for (int i = 0; i < 32; ++i) x[32 + i] = 0;                     // a block of zeros
        for (int i = 64; i < 96; ++i) x[i] = (i % 2 ? 1 : -1) * 0.75f;  // every value is the largest
        x[100] = 1e-6f, x[128] = -40.0f, x[130] = 40.0f;                // an outlier of both signs, negative first
        check_block<32>(x, rows, depth, shift);
        check_block<256>(x, rows, depth, shift);
      }
}

TEST(quantise_rows_gives_zeros_for_zeros) {
  const std::vector<float> x(512, 0.0f);
  check_block<32>(x, 1, 512, 0);
  check_block<256>(x, 1, 512, 0);
  CHECK(quantise_reference<256>(x.data()).d == 0);
}

TEST(quantise_rows_stays_in_range_on_infinities_and_nan) {
  std::vector<float> x(256, 1.0f);
  x[3] = INFINITY, x[40] = -INFINITY, x[70] = NAN, x[100] = 1e-40f;
  for (const Level& level : levels())
    if (level.present()) {
      for (const A8<32>& block : quantise<32>(level, x, 1, 256, 1, 0))
        for (int8_t q : block.q) CHECK(q >= -127);
      for (const A8<256>& block : quantise<256>(level, x, 1, 256, 1, 0))
        for (int8_t q : block.q) CHECK(q >= -127);
    }
}

// The blocks that `op` writes as its last result, after a result of floats into `first` where there is one.
template <int block>
static std::vector<A8<block>> rows_of(const Level& level, const char* op, const std::vector<Operand>& in, Floats* first,
                                      std::vector<Attr> attrs, int workers) {
  Operand to = in[0];
  std::vector<A8<block>> out(static_cast<size_t>(to.size() / block));
  to.data = reinterpret_cast<std::byte*>(out.data()), to.dtype = block == 32 ? DType::a8_32 : DType::a8_256;
  attrs.push_back({"block", block});
  run_kernel(level, op, in, first ? std::vector{first->operand(), to} : std::vector{to}, attrs, workers);
  return out;
}

template <int block>
static void check_fused(const Level& level, int64_t rows, int64_t depth, int workers) {
  const auto same = [](const std::vector<A8<block>>& a, const std::vector<A8<block>>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(A8<block>)) == 0;
  };
  const auto quantised = [&](const Floats& x) { return rows_of<block>(level, "quantise_rows", {x.operand()}, nullptr, {}, 1); };
  Floats x = normal({rows, depth}, 1, 1), y = normal({rows, depth}, 2), w = normal({depth}, 3, 1);
  Floats made({rows, depth}), sum({rows, depth}), place = x;
  const std::vector<Attr> eps{{"eps", 1e-5}};
  run_kernel(level, "rms_norm", {x.operand(), w.operand()}, {made.operand()}, eps);
  CHECK(same(rows_of<block>(level, "rms_norm_a8", {x.operand(), w.operand()}, nullptr, eps, workers), quantised(made)));
  run_kernel(level, "add_rms_norm", {x.operand(), y.operand(), w.operand()}, {sum.operand(), made.operand()}, eps);
  const std::vector<Operand> in{place.operand(), y.operand(), w.operand()};
  CHECK(same(rows_of<block>(level, "add_rms_norm_a8", in, &place, eps, workers), quantised(made)));  // in place
  CHECK(same_bits(place, sum));
  for (double kind : {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}) {
    run_kernel(level, "gated", {x.operand(), y.operand()}, {made.operand()}, {{"kind", kind}});
    const std::vector<Operand> pair{x.operand(), y.operand()};
    CHECK(same(rows_of<block>(level, "gated_a8", pair, nullptr, {{"kind", kind}}, workers), quantised(made)));
  }
}

TEST(norms_and_gates_that_quantise_have_the_bits_of_two_ops) {
  for (const Level& level : levels())
    if (level.present())
      for (int64_t rows : {1, 5})
        for (int workers : {1, 3}) {
          check_fused<32>(level, rows, 96, workers);
          check_fused<32>(level, rows, 1536, workers);
          check_fused<256>(level, rows, 768, workers);
        }
}
