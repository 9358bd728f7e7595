// matmul_half is as near to double precision as halves allow, whatever the size of a row, and a row's result does not depend
// on the batch or the team.
#include <cmath>

#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

static std::vector<float> multiply(const Level& level, const Weight& weight, std::vector<float> x, int64_t rows, int workers,
                                   std::vector<float>* bias = nullptr) {
  std::vector<float> y(static_cast<size_t>(rows * weight.rows));
  Operand w, none;
  w.weight = &weight;
  run_kernel(level, "matmul_half", {floats(x, rows, weight.cols), w, bias ? floats(*bias, 1, weight.rows) : none},
             {floats(y, rows, weight.rows)}, {{"activation", static_cast<double>(Activation::none)}}, workers);
  return y;
}

// Half precision of every factor, and of sums of 64: relative to the terms' sizes, which a sum may fall below.
static void check_near(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& y) {
  const int64_t rows = static_cast<int64_t>(y.size()) / matrix.rows;
  for (int64_t n = 0; n < matrix.rows; ++n) {
    const std::vector<float> w = matrix.row(n);
    for (int64_t m = 0; m < rows; ++m) {
      double want = 0, squares = 0, sizes = 0, most = 0;
      for (int64_t k = 0; k < matrix.cols; ++k) {
        const double value = x[static_cast<size_t>(m * matrix.cols + k)], term = value * w[static_cast<size_t>(k)];
        want += term, squares += term * term, sizes += std::abs(term), most = std::max(most, std::abs(value));
      }
      const double near = 6e-3 * std::sqrt(squares) + 1e-3 * sizes + 1e-6 * most;
      CHECK(std::abs(y[static_cast<size_t>(m * matrix.rows + n)] - want) <= near);
    }
  }
}

TEST(matmul_half_is_near_double_precision_and_the_same_in_any_batch) {
  std::mt19937 random(61);
  for (int64_t rows : {1, 16, 17, 270})
    for (int64_t cols : {1, 15, 64, 72, 257, 1100}) {
      const Matrix matrix(DType::f16, rows, cols, random);
      const Weight weight = matrix.as_panels();
      const std::vector<float> x = random_floats(static_cast<size_t>(100 * cols), random);
      for (const Level& level : levels()) {
        if (!level.present()) continue;
        const std::vector<float> all = multiply(level, weight, x, 100, 1);
        check_near(matrix, x, all);
        for (int64_t some : {1, 2, 3, 7, 8, 9, 13, 100}) {
          const std::vector<float> part(x.begin(), x.begin() + some * cols), want(all.begin(), all.begin() + some * rows);
          for (int workers : {1, 3}) CHECK(same_bits(multiply(level, weight, part, some, workers), want));
        }
      }
    }
}

TEST(matmul_half_takes_rows_of_any_size) {
  std::mt19937 random(62);
  const Matrix matrix(DType::f16, 33, 300, random);
  const Weight weight = matrix.as_panels();
  for (float size : {1e-30f, 1e-6f, 300.0f, 1e6f, 1e30f}) {
    std::vector<float> x = random_floats(3 * 300, random);
    for (float& value : x) value *= size;
    x[310] = 1000 * size;  // and one with a value far beyond the others
    for (const Level& level : levels())
      if (level.present()) check_near(matrix, x, multiply(level, weight, x, 3, 2));
  }
  for (const Level& level : levels())
    if (level.present())
      for (float value : multiply(level, weight, std::vector<float>(300), 1, 1)) CHECK(value == 0);
}

TEST(matmul_half_keeps_what_is_no_number) {
  std::mt19937 random(63);
  const Matrix matrix(DType::f16, 20, 130, random);
  const Weight weight = matrix.as_panels();
  for (float bad : {NAN, INFINITY, -INFINITY})
    for (size_t at : {size_t{3}, size_t{129}}) {
      std::vector<float> x = random_floats(9 * 130, random);
      x[4 * 130 + at] = bad;
      for (const Level& level : levels()) {
        if (!level.present()) continue;
        const std::vector<float> y = multiply(level, weight, x, 9, 1);
        for (size_t i = 0; i < y.size(); ++i) CHECK(std::isfinite(y[i]) == (i / 20 != 4));
      }
    }
}

TEST(matmul_half_adds_the_bias) {
  std::mt19937 random(64);
  const Matrix matrix(DType::f16, 37, 20, random);
  const std::vector<float> x = random_floats(5 * 20, random);
  std::vector<float> bias = random_floats(37, random);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    const std::vector<float> plain = multiply(level, matrix.as_panels(), x, 5, 1);
    const std::vector<float> biased = multiply(level, matrix.as_panels(), x, 5, 2, &bias);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(biased[i] == plain[i] + bias[i % 37]);
  }
}
