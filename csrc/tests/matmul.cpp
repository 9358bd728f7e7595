// matmul agrees with a double loop for every type and layout, around panel and tile sizes, and an output element does
// not depend on the batch, the team or (between levels with a fused multiply-add) the level.
#include <cmath>

#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

namespace {

std::vector<float> run(const Level& level, const Weight& weight, const std::vector<float>& x, int64_t rows, int workers,
                       int shift = 0, std::vector<float>* bias = nullptr, Activation activation = Activation::none) {
  std::vector<float> moved(x.size() + static_cast<size_t>(shift)), y(static_cast<size_t>(rows * weight.rows + shift));
  std::copy(x.begin(), x.end(), moved.begin() + shift);
  Operand w, none;
  w.weight = &weight;
  Operand b = bias ? floats(*bias, 1, weight.rows) : none;
  run_kernel(level, "matmul", {floats(moved, rows, weight.cols, shift), w, b}, {floats(y, rows, weight.rows, shift)},
             {{"activation", static_cast<double>(activation)}}, workers);
  return {y.begin() + shift, y.end()};
}

void check_against_double(const Matrix& matrix, const std::vector<float>& x, const std::vector<float>& y,
                          int64_t rows) {
  const double bound = 4e-7 * std::sqrt(static_cast<double>(matrix.cols)) + 2e-7;
  for (int64_t n = 0; n < matrix.rows; ++n) {
    const std::vector<float> w = matrix.row(n);
    for (int64_t m = 0; m < rows; ++m) {
      double want = 0, size = 0;
      for (int64_t k = 0; k < matrix.cols; ++k) {
        want += double(x[m * matrix.cols + k]) * w[k];
        size += std::abs(double(x[m * matrix.cols + k]) * w[k]);
      }
      CHECK(std::abs(y[m * matrix.rows + n] - want) <= bound * size);
    }
  }
}

// One matrix with every batch, team and level.
void check_matrix(const Matrix& matrix, const Weight& weight, std::mt19937& random) {
  const std::vector<float> x = random_floats(static_cast<size_t>(64 * matrix.cols), random);
  std::vector<float> fused;  // of the first level with a fused multiply-add
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    const std::vector<float> all = run(level, weight, x, 64, 1);
    check_against_double(matrix, x, all, 64);
    for (int64_t rows : {1, 2, 3, 7, 13}) {
      const std::vector<float> part(x.begin(), x.begin() + rows * matrix.cols);
      const std::vector<float> want(all.begin(), all.begin() + rows * matrix.rows);
      for (int workers : {1, 2, 3}) CHECK(same_bits(run(level, weight, part, rows, workers, workers - 1), want));
    }
    CHECK(same_bits(run(level, weight, x, 64, 3), all));
    if (std::strcmp(level.name, "scalar") == 0) continue;
    if (fused.empty()) fused = all;
    CHECK(same_bits(all, fused));
  }
}

}  // namespace

TEST(matmul_of_float_panels_and_rows_is_exact_to_rounding_and_invariant) {
  std::mt19937 random(1);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int64_t rows : {1, 15, 16, 17, 100})
      for (int64_t cols : {1, 15, 33, 257}) {
        const Matrix matrix(dtype, rows, cols, random);
        check_matrix(matrix, matrix.as_panels(), random);
        if (rows == 17) check_matrix(matrix, matrix.as_rows(), random);
      }
}

TEST(matmul_of_many_panels_is_exact_to_rounding_and_invariant) {
  std::mt19937 random(2);
  for (int64_t rows : {270, 1100}) {
    const Matrix matrix(DType::f32, rows, 40, random);
    check_matrix(matrix, matrix.as_panels(), random);
  }
}

TEST(matmul_of_quantised_rows_is_exact_to_rounding_and_invariant) {
  std::mt19937 random(3);
  for (int type = static_cast<int>(DType::q4_0); type <= static_cast<int>(DType::q4_z); ++type) {
    const auto dtype = static_cast<DType>(type);
    const Matrix matrix(dtype, 19, info(dtype).block == 256 ? 512 : 288, random);
    check_matrix(matrix, matrix.as_rows(), random);
    if (has_panels(dtype)) check_matrix(matrix, matrix.as_panels(), random);
  }
}

TEST(matmul_of_quantised_panels_equals_that_of_rows) {
  std::mt19937 random(13);
  for (int type = static_cast<int>(DType::q4_0); type <= static_cast<int>(DType::q4_z); ++type) {
    const auto dtype = static_cast<DType>(type);
    if (!has_panels(dtype)) continue;
    const Matrix matrix(dtype, 50, 512, random);
    const std::vector<float> x = random_floats(3 * 512, random);
    for (const Level& level : levels())
      if (level.present())
        CHECK(same_bits(run(level, matrix.as_panels(), x, 3, 1), run(level, matrix.as_rows(), x, 3, 1)));
  }
}

TEST(matmul_adds_the_bias_and_then_activates) {
  std::mt19937 random(4);
  const Matrix matrix(DType::f32, 37, 20, random);
  const Weight weight = matrix.as_panels();
  const std::vector<float> x = random_floats(5 * 20, random);
  std::vector<float> bias = random_floats(37, random);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    const std::vector<float> plain = run(level, weight, x, 5, 1);
    const std::vector<float> biased = run(level, weight, x, 5, 2, 0, &bias);
    const std::vector<float> relu = run(level, weight, x, 5, 2, 0, &bias, Activation::relu);
    const std::vector<float> silu = run(level, weight, x, 5, 2, 1, nullptr, Activation::silu);
    for (size_t i = 0; i < plain.size(); ++i) {
      CHECK(biased[i] == plain[i] + bias[i % 37]);
      CHECK(relu[i] == std::max(0.0f, biased[i]));
      CHECK(std::abs(silu[i] - plain[i] / (1 + std::exp(-plain[i]))) <= 1e-6 * (1 + std::abs(plain[i])));
    }
  }
}
