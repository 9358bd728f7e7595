// attention_half is as near to double precision as halves allow, whatever its values' size, and a text's result does not
// depend on the batch.
#include "tests/attention_cases.h"

using namespace weft;
using namespace weft::test;

using Shape = AttentionShape;
using Inputs = AttentionInputs;
static const Shape kShapes[] = {{1, 1, 1}, {2, 2, 15}, {4, 2, 16}, {9, 3, 20}, {3, 3, 32}, {20, 1, 33}, {4, 2, 64}, {3, 1, 80}, {2, 2, 128},
                                {6, 6, 32, 0, false, 0, false, true}, {4, 1, 20, 0, false, 0, false, true}};

static std::vector<Attr> scaled(const Shape& c) { return {{"scale", c.scale()}}; }

// Not check_op: levels that have halves round, the others do not.
static void check(const Shape& c, const Inputs& x, const std::vector<double>& want, double tolerance) {
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats out(x.q.shape(), 1);
    run_kernel(level, "attention_half", x.operands(c, false), {out.operand()}, scaled(c), 2);
    double error = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const double off = std::abs(out[i] - want[i]);
      if (!(off <= error)) error = off == off ? off : INFINITY;
    }
    if (!(error <= tolerance)) std::printf("attention_half at %s: error %.3g above %.3g\n", level.name, error, tolerance);
    CHECK(error <= tolerance);
  }
}
static void check(const Shape& c, const Inputs& x, double size = 1) {
  check(c, x, attention_reference(c, x, false), 5e-3 * size);
}

TEST(attention_half_agrees_with_double_precision) {
  for (const Shape& c : kShapes) check(c, Inputs(c, {0, 1, 1, 34, 67}));
}

TEST(attention_half_takes_texts_of_more_than_one_block_of_keys) {
  for (const bool biased : {false, true}) {
    const Shape c{2, 1, 33, 0, false, 0, false, biased};
    for (int32_t length : {255, 256, 257, 512, 600}) check(c, Inputs(c, {0, 3, 3 + length}));
  }
}

TEST(attention_half_takes_values_of_any_size) {
  const Shape c{2, 1, 32};
  for (float size : {1e-30f, 1e-6f, 300.0f, 1e6f, 1e30f}) {
    Inputs x(c, {0, 3, 560});
    for (size_t i = 0; i < x.v.size(); ++i) x.v[i] *= size;
    check(c, x, double(size));
  }
}

TEST(attention_half_of_far_and_of_equal_scores_is_near) {
  const Shape c{1, 1, 32};
  Inputs x(c, {0, 3, 1100});
  for (size_t i = 0; i < x.q.size(); ++i) x.q[i] = 30, x.k[i] = i < 96 ? -30.0f - float(i / 32) : 1, x.v[i] = 2;
  for (size_t i = 0; i < 32; ++i) x.v[i] = 3;  // the first text's scores lie 170 apart; the second's are equal, its values too
  check(c, x, map(x.q.size(), [](size_t i) { return i < 96 ? 3.0 : 2.0; }), 1e-3);
}

TEST(attention_half_keeps_what_is_no_number) {
  const Shape c{1, 1, 32};
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Inputs x(c, {0, 40, 80});
    x.k[7 * 32 + 5] = NAN;
    Floats out(x.q.shape(), 1);
    run_kernel(level, "attention_half", x.operands(), {out.operand()}, scaled(c), 1);
    for (size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i < 40 * 32));
  }
}

TEST(attention_half_is_the_same_alone_as_in_a_batch) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present()) continue;
      Inputs x(c, {0, 5, 40, 40, 41, c.dim == 20 ? 600 : 120});
      Floats together(x.q.shape(), 1), alone(x.q.shape(), 1);
      run_kernel(level, "attention_half", x.operands(c, false), {together.operand()}, scaled(c), 3);
      for (size_t b = 0; b + 1 < x.segments.size(); ++b) {
        const int32_t begin = x.segments[b], end = x.segments[b + 1];
        Ints own = ints({0, end - begin});
        auto part = [&](const Floats& a) { return slice(a, begin, end); };
        std::vector<Operand> in = x.operands(c, false);
        in[0] = part(x.q), in[1] = part(x.k), in[2] = part(x.v), in[3] = own.operand();
        run_kernel(level, "attention_half", in, {part(alone)}, scaled(c), 1);
      }
      CHECK(same_bits(together, alone));
    }
}
