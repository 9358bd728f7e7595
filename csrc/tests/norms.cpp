// The norms and softmax at every level agree with double precision; a result may lie where an operand was.
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

static const int64_t kDims[] = {1, 15, 16, 17, 64, 65, 1023};

struct Moments {
  double mean, variance, squares;  // squares: the mean of x^2
};
static Moments moments(const std::vector<double>& x, size_t row, size_t dim) {
  double total = 0, squares = 0, centred = 0;
  for (size_t i = 0; i < dim; ++i) total += x[row * dim + i], squares += x[row * dim + i] * x[row * dim + i];
  for (size_t i = 0; i < dim; ++i) centred += std::pow(x[row * dim + i] - total / dim, 2);
  return {total / dim, centred / dim, squares / dim};
}
static std::vector<double> wide(const Floats& x) {
  return map(x.size(), [&](size_t i) { return x[i]; });
}
static std::vector<double> layer_norm(const std::vector<double>& x, const Floats& w, const Floats& b) {
  const size_t dim = w.size();
  return map(x.size(), [&](size_t i) {
    Moments m = moments(x, i / dim, dim);
    return (x[i] - m.mean) / std::sqrt(m.variance + 1e-5) * w[i % dim] + b[i % dim];
  });
}
static std::vector<double> rms_norm(const std::vector<double>& x, const Floats& w) {
  const size_t dim = w.size();
  return map(x.size(), [&](size_t i) {
    return x[i] / std::sqrt(moments(x, i / dim, dim).squares + 1e-5) * w[i % dim];
  });
}

TEST(layer_norm_agrees_with_double_precision) {
  for (int64_t dim : kDims)
    for (int shift : {0, 1}) {
      Floats x = normal({3, dim}, 1, shift), w = normal({dim}, 2, shift), b = normal({dim}, 3, shift);
      for (size_t i = 0; i < x.size(); ++i) x[i] += 10;  // a mean that a careless variance would drown in
      check_op("layer_norm", {x.operand(), w.operand(), b.operand()}, {3, dim}, shift, {{"eps", 1e-5}},
               layer_norm(wide(x), w, b), 2e-5);
    }
}

TEST(add_layer_norm_is_layer_norm_of_the_sum) {
  for (int64_t dim : kDims) {
    Floats x = normal({5, dim}, 1, 1), y = normal({5, dim}, 4, 1), w = normal({dim}, 2), b = normal({dim}, 3);
    Floats sum({5, dim});
    for (size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + y[i];
    check_op("add_layer_norm", {x.operand(), y.operand(), w.operand(), b.operand()}, {5, dim}, 1, {{"eps", 1e-5}},
             layer_norm(wide(sum), w, b), 1e-5);
  }
}

TEST(add_rms_norm_gives_the_sum_and_its_norm_in_place) {
  for (int64_t dim : kDims)
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      Floats x = normal({5, dim}, 1, 1), y = normal({5, dim}, 4), w = normal({dim}, 2), sum({5, dim}), apart({5, dim});
      for (size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + y[i];
      run_kernel(level, "rms_norm", {sum.operand(), w.operand()}, {apart.operand()}, {{"eps", 1e-5}});
      run_kernel(level, "add_rms_norm", {x.operand(), y.operand(), w.operand()}, {x.operand(), y.operand()},
                 {{"eps", 1e-5}}, 3);
      CHECK(same_bits(x, sum));
      CHECK(same_bits(y, apart));
      CHECK(error_of(y, rms_norm(wide(sum), w)) < 1e-5);
    }
}

TEST(l2_normalise_divides_by_the_norm_or_eps) {
  for (int64_t dim : kDims) {
    Floats x = normal({3, dim}, 1, 1);
    for (int64_t i = 0; i < dim; ++i) x[static_cast<size_t>(i)] = 0;
    const std::vector<double> all = wide(x);
    const size_t d = static_cast<size_t>(dim);
    check_op("l2_normalise", {x.operand()}, {3, dim}, 1, {{"eps", 1e-12}}, map(all.size(), [&](size_t i) {
               return all[i] / std::max(std::sqrt(moments(all, i / d, d).squares * dim), 1e-12);
             }), 1e-6);
  }
}

TEST(softmax_agrees_with_double_precision) {
  for (int64_t dim : kDims) {
    Floats x = normal({3, dim}, 1, 1, 8.0f);
    for (int64_t i = 0; i < dim; ++i) x[static_cast<size_t>(i)] -= 1000;  // far from zero: the maximum must come off
    if (dim > 1) x[x.size() - 1] = -INFINITY;
    const size_t d = static_cast<size_t>(dim);
    check_op("softmax", {x.operand()}, {3, dim}, 1, {}, map(x.size(), [&](size_t i) {
               double top = -INFINITY, total = 0;
               for (size_t j = i / d * d; j < (i / d + 1) * d; ++j) top = std::max<double>(top, x[j]);
               for (size_t j = i / d * d; j < (i / d + 1) * d; ++j) total += std::exp(x[j] - top);
               return std::exp(x[i] - top) / total;
             }), 1e-6);
  }
}

TEST(rows_alone_and_together_have_the_same_bits) {
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats x = normal({200, 33}, 1), w = normal({33}, 2), b = normal({33}, 3), together({200, 33}), alone({200, 33});
    run_kernel(level, "layer_norm", {x.operand(), w.operand(), b.operand()}, {together.operand()}, {{"eps", 1e-5}}, 3);
    for (int64_t row = 0; row < 200; ++row) {
      Operand in = x.operand(), out = alone.operand();
      in.data += row * 33 * 4, out.data += row * 33 * 4;
      in.dim[0] = out.dim[0] = 1;
      run_kernel(level, "layer_norm", {in, w.operand(), b.operand()}, {out}, {{"eps", 1e-5}});
    }
    CHECK(same_bits(together, alone));
  }
}
