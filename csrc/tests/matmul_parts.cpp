// matmul_parts gives, bit for bit, the sums that csrc/kernels/matmul_parts.cpp describes, for any rows and teams, and is
// closer to the exact products than matmul is.
#include <cmath>

#include "core/levels.h"
#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

namespace {

std::vector<float> run(const Level& level, const char* kernel, const Weight& weight, std::vector<float> x, int64_t rows,
                       int workers, std::vector<float>* bias = nullptr, Activation activation = Activation::none) {
  std::vector<float> y(static_cast<size_t>(rows * weight.rows));
  Operand w, none;
  w.weight = &weight;
  run_kernel(level, kernel, {floats(x, rows, weight.cols), w, bias ? floats(*bias, 1, weight.rows) : none},
             {floats(y, rows, weight.rows)}, {{"activation", static_cast<double>(activation)}}, workers);
  return y;
}

// The levels that have the kernel.
std::vector<const Level*> with_parts() {
  std::vector<const Level*> found;
  for (const Level& level : levels())
    if (level.present() && find_kernel(level, "matmul_parts")) found.push_back(&level);
  return found;
}

// The first 8 bits, the next 8 and the rest.
float part_of(float value, int part) {
  for (; part; --part) value -= bit_cast<float>(bit_cast<uint32_t>(value) & 0xFFFF0000u);
  return bit_cast<float>(bit_cast<uint32_t>(value) & 0xFFFF0000u);
}

// Products of parts are exact in float32, so that it does not matter here whether they are fused with the additions.
float expected(const float* x, const std::vector<float>& w) {
  constexpr int path[6][2] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};  // parts of x and of w
  float total = 0;
  for (size_t block = 0; block < w.size(); block += 384) {
    float sum = 0;
    for (size_t k = block; k < std::min(block + 384, w.size()); k += 32)
      for (auto [i, j] : path) {
        float chains[2] = {};
        for (size_t c = k; c < std::min(k + 32, w.size()); ++c) chains[c % 2] += part_of(x[c], i) * part_of(w[c], j);
        sum += chains[0] + chains[1];
      }
    total = block ? total + sum : sum;
  }
  return total;
}

}  // namespace

TEST(products_by_parts_are_the_specified_sums_for_any_rows_and_teams) {
  std::mt19937 random(61);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (auto [outputs, cols] : {std::pair<int64_t, int64_t>{1, 1}, {16, 32}, {17, 65}, {40, 384}, {100, 801}}) {
      const Matrix matrix(dtype, outputs, cols, random);
      const Weight weight = matrix.as_panels();
      const std::vector<float> x = random_floats(static_cast<size_t>(70 * cols), random);
      std::vector<float> want;
      for (int64_t r = 0; r < 70; ++r)
        for (int64_t n = 0; n < outputs; ++n) want.push_back(expected(x.data() + r * cols, matrix.row(n)));
      for (const Level* level : with_parts())
        for (int64_t rows : {0, 1, 2, 7, 15, 16, 17, 32, 33, 49, 70})
          for (int workers : {1, 3}) {
            const std::vector<float> some(x.begin(), x.begin() + rows * cols);
            CHECK(same_bits(run(*level, "matmul_parts", weight, some, rows, workers), {want.begin(), want.begin() + rows * outputs}));
          }
    }
}

TEST(products_by_parts_of_many_rows_have_the_bits_of_one) {
  std::mt19937 random(62);
  const Matrix matrix(DType::f32, 330, 400, random);
  const Weight weight = matrix.as_panels();
  std::vector<float> x = random_floats(900 * 400, random);
  for (size_t i = 0; i < 400; ++i) x[i] *= 1e-36f;  // sums and parts that are subnormal
  for (const Level* level : with_parts()) {
    const std::vector<float> all = run(*level, "matmul_parts", weight, x, 900, 1);
    CHECK(same_bits(run(*level, "matmul_parts", weight, x, 900, 3), all));
    for (int64_t r : {0, 1, 383, 384, 899}) {
      const std::vector<float> row(x.begin() + r * 400, x.begin() + (r + 1) * 400);
      CHECK(same_bits(run(*level, "matmul_parts", weight, row, 1, 2), {all.begin() + r * 330, all.begin() + (r + 1) * 330}));
    }
  }
}

TEST(products_by_parts_are_closer_than_fused_multiply_adds) {
  std::mt19937 random(63);
  for (int64_t cols : {384, 768, 3072}) {
    const Matrix matrix(DType::f32, 64, cols, random);
    const Weight weight = matrix.as_panels();
    std::vector<float> x = random_floats(static_cast<size_t>(40 * cols), random);
    for (size_t i = 0; i < x.size(); i += 7) x[i] *= 100;  // few large values among small ones, as in trained models
    for (const Level* level : with_parts()) {
      double squares[2] = {}, largest[2] = {};
      const std::vector<float> made[2] = {run(*level, "matmul", weight, x, 40, 1), run(*level, "matmul_parts", weight, x, 40, 1)};
      for (int64_t n = 0; n < 64; ++n) {
        const std::vector<float> w = matrix.row(n);
        for (int64_t r = 0; r < 40; ++r) {
          double exact = 0;
          for (int64_t k = 0; k < cols; ++k) exact += double(x[size_t(r * cols + k)]) * w[size_t(k)];
          for (int i : {0, 1}) {
            const double off = std::abs(made[i][size_t(r * 64 + n)] - exact);
            squares[i] += off * off, largest[i] = std::max(largest[i], off);
          }
        }
      }
      CHECK(squares[1] < squares[0] / 2);
      CHECK(largest[1] < largest[0]);
    }
  }
}

TEST(products_by_parts_add_the_bias_and_then_activate) {
  std::mt19937 random(64);
  const Matrix matrix(DType::f32, 37, 400, random);
  const Weight weight = matrix.as_panels();
  const std::vector<float> x = random_floats(40 * 400, random);
  std::vector<float> bias = random_floats(37, random);
  for (const Level* level : with_parts()) {
    const std::vector<float> plain = run(*level, "matmul_parts", weight, x, 40, 1);
    const std::vector<float> relu = run(*level, "matmul_parts", weight, x, 40, 2, &bias, Activation::relu);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(relu[i] == std::max(0.0f, plain[i] + bias[i % 37]));
  }
}
