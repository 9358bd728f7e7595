// attention_bf16 is as near to double precision as weights in bfloat16 allow; it has the same bits at every level with a
// fused multiply-add, and whatever else is in the batch.
#include "core/half.h"
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

struct Shape {
  int64_t heads, kv_heads, dim;
  double scale() const { return static_cast<float>(1 / std::sqrt(double(dim))); }
};
static const Shape kShapes[] = {{1, 1, 1}, {2, 2, 15}, {4, 2, 16}, {9, 3, 20}, {3, 3, 32}, {20, 1, 33},
                                {4, 2, 64}, {3, 1, 80}, {2, 2, 128}};

struct Inputs {
  Floats q, k, v;
  Ints segments;
  Inputs(const Shape& c, std::initializer_list<int32_t> ends)
      : q(normal({*(ends.end() - 1), c.heads, c.dim}, 1, 1)), k(normal({*(ends.end() - 1), c.kv_heads, c.dim}, 2, 1)),
        v(normal({*(ends.end() - 1), c.kv_heads, c.dim}, 3, 1)), segments(ints(ends)) {}
};

static double rounded(float value) { return bf16_to_float(float_to_bf16_normal(value)); }

static std::vector<double> reference(const Shape& c, const Inputs& x) {
  const float scale = static_cast<float>(c.scale()) * 1.44269504f;
  std::vector<double> out(x.q.size());
  for (size_t b = 0; b + 1 < x.segments.size(); ++b)
    for (int64_t t = x.segments[b]; t < x.segments[b + 1]; ++t)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t g = h / (c.heads / c.kv_heads);
        std::vector<double> scores;
        for (int64_t s = x.segments[b]; s < x.segments[b + 1]; ++s) {
          double score = 0;
          for (int64_t i = 0; i < c.dim; ++i)
            score += rounded(x.q.data()[(t * c.heads + h) * c.dim + i] * scale) *
                     rounded(x.k.data()[(s * c.kv_heads + g) * c.dim + i]);
          scores.push_back(score);
        }
        const double top = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (double& score : scores) total += score = std::exp2(score - top);
        for (size_t s = 0; s < scores.size(); ++s)
          for (int64_t i = 0; i < c.dim; ++i)
            out[static_cast<size_t>((t * c.heads + h) * c.dim + i)] +=
                scores[s] / total * rounded(x.v.data()[((x.segments[b] + int64_t(s)) * c.kv_heads + g) * c.dim + i]);
      }
  return out;
}

static std::vector<Operand> operands(const Inputs& x) {
  return {x.q.operand(), x.k.operand(), x.v.operand(), x.segments.operand()};
}

TEST(attention_bf16_agrees_with_double_precision_on_rounded_operands) {
  for (const Shape& c : kShapes) {
    Inputs x(c, {0, 1, 1, 34, 67});
    check_op("attention_bf16", operands(x), x.q.shape(), 1, {{"scale", c.scale()}}, reference(c, x), 3e-3);
  }
}

TEST(attention_bf16_takes_texts_of_more_than_one_block_of_keys) {
  const Shape c{2, 1, 33};
  Inputs x(c, {0, 3, 560});
  check_op("attention_bf16", operands(x), x.q.shape(), 1, {{"scale", c.scale()}}, reference(c, x), 3e-3);
}

TEST(attention_bf16_of_far_and_of_equal_scores_is_exact) {
  const Shape c{1, 1, 32};
  Inputs x(c, {0, 3, 1100});
  for (size_t i = 0; i < x.q.size(); ++i) x.q[i] = 100, x.k[i] = i < 96 ? -100.0f - float(i / 32) : 1, x.v[i] = 2;
  // The first text's scores lie 566 apart: all weight is on its first key. The second's are equal, its values too.
  for (size_t i = 0; i < 32; ++i) x.v[i] = 3;
  check_op("attention_bf16", operands(x), x.q.shape(), 1, {{"scale", c.scale()}},
           map(x.q.size(), [](size_t i) { return i < 96 ? 3.0 : 2.0; }), 0);
}

TEST(attention_bf16_is_the_same_alone_as_in_a_batch) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present()) continue;
      Inputs x(c, {0, 5, 40, 40, 41, c.dim == 20 ? 600 : 120});
      Floats together(x.q.shape(), 1), alone(x.q.shape(), 1);
      run_kernel(level, "attention_bf16", operands(x), {together.operand()}, {{"scale", c.scale()}}, 3);
      for (size_t b = 0; b + 1 < x.segments.size(); ++b) {
        const int32_t begin = x.segments[b], end = x.segments[b + 1];
        Ints own = ints({0, end - begin});
        auto part = [&](const Floats& a) { return slice(a, begin, end); };
        run_kernel(level, "attention_bf16", {part(x.q), part(x.k), part(x.v), own.operand()}, {part(alone)},
                   {{"scale", c.scale()}});
      }
      CHECK(same_bits(together, alone));
    }
}
