// matmul_bf16 equals, bit for bit and at every level, the sums that csrc/kernels/matmul_bf16.cpp describes; so a row's
// result depends on nothing but itself.
#include "core/half.h"
#include "core/levels.h"
#include "matmul_cases.h"
#include "test.h"

using namespace weft;
using namespace weft::test;

namespace {

Operand halves(std::vector<uint16_t>& values, int64_t rows, int64_t cols) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::bf16, 2, {rows, cols}};
}

// x is rounded by round_rows first; with T uint16_t the result is bfloat16.
template <class T = float, bool split = false>
std::vector<T> run(const Level& level, const Weight& weight, std::vector<float> x, int64_t rows, int workers,
                   std::vector<float>* bias = nullptr, double activation = 0) {
  constexpr bool narrow = std::is_same_v<T, uint16_t>;
  const int64_t columns = narrow && split ? 2 * weight.rows : weight.rows;
  std::vector<uint16_t> rounded(static_cast<size_t>(rows * weight.cols));
  std::vector<T> y(static_cast<size_t>(rows * columns));
  run_kernel(level, "round_rows", {floats(x, rows, split ? weight.cols / 2 : weight.cols)},
             {halves(rounded, rows, weight.cols)}, {{"split", double(split)}}, workers);
  Operand w, none, out{reinterpret_cast<std::byte*>(y.data()), narrow ? DType::bf16 : DType::f32, 2, {rows, columns}};
  w.weight = &weight;
  run_kernel(level, "matmul_bf16",
             {halves(rounded, rows, weight.cols), w, bias ? floats(*bias, 1, weight.rows) : none}, {out},
             {{"activation", activation}, {"rounded", double(narrow)}, {"split", double(split)}}, workers);
  return y;
}

float rounded(float value) { return bf16_to_float(float_to_bf16_normal(value)); }

float expected(const float* x, const std::vector<float>& w) {
  float total = 0;
  for (size_t k = 0; k < w.size(); k += 32) {
    float sums[2] = {};
    for (size_t i = k; i < std::min(k + 32, w.size()); ++i) sums[i % 2] += rounded(x[i]) * rounded(w[i]);
    total += sums[0] + sums[1];
  }
  return total;
}

}  // namespace

TEST(matmul_bf16_gives_the_specified_sums_at_every_level) {
  std::mt19937 random(21);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int64_t rows : {1, 15, 17, 50, 100})
      for (int64_t cols : {32, 64, 288}) {
        const Matrix matrix(dtype, rows, cols, random);
        const Weight weight = matrix.as_pairs();
        const std::vector<float> x = random_floats(static_cast<size_t>(70 * cols), random);
        std::vector<float> want;
        for (int64_t r = 0; r < 70; ++r)
          for (int64_t c = 0; c < rows; ++c) want.push_back(expected(x.data() + r * cols, matrix.row(c)));
        for (const Level& level : levels()) {
          if (!level.present()) continue;
          for (int64_t count : {1, 2, 3, 16, 17, 33, 70}) {
            const std::vector<float> part(x.begin(), x.begin() + count * cols);
            const std::vector<float> some(want.begin(), want.begin() + count * rows);
            for (int workers : {1, 3}) CHECK(same_bits(run(level, weight, part, count, workers), some));
          }
        }
      }
}

TEST(matmul_bf16_of_long_rows_and_many_rows_is_the_same_in_parts) {
  std::mt19937 random(22);
  for (auto [cols, count] : {std::pair<int64_t, int64_t>{6016, 300}, {16384, 61}}) {
    const Matrix matrix(DType::f32, 40, cols, random);
    const Weight weight = matrix.as_pairs();
    const std::vector<float> x = random_floats(static_cast<size_t>(count * cols), random);
    for (const Level& level : levels()) {
      if (!level.present() || std::strcmp(level.name, "scalar") == 0) continue;
      const std::vector<float> all = run(level, weight, x, count, 2);
      for (int64_t r : {int64_t{0}, count / 2, count - 1}) {
        const std::vector<float> row(x.begin() + r * cols, x.begin() + (r + 1) * cols);
        const std::vector<float> want(all.begin() + r * 40, all.begin() + (r + 1) * 40);
        CHECK(same_bits(run(level, weight, row, 1, 1), want));
        CHECK(want[7] == expected(row.data(), matrix.row(7)));
      }
    }
  }
}

// Sums near 1e-38: the matrix unit takes what is subnormal for zero, and one row alone must too where it is there.
TEST(matmul_bf16_of_tiny_numbers_does_not_depend_on_other_rows) {
  std::mt19937 random(27);
  const Matrix matrix(DType::f32, 40, 96, random);
  const Weight weight = matrix.as_pairs();
  for (float scale : {1e-36f, 1e-38f, 1e-40f}) {
    std::vector<float> x = random_floats(20 * 96, random);
    for (float& value : x) value *= scale;
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      const std::vector<float> all = run(level, weight, x, 20, 1);
      for (int64_t r = 0; r < 20; ++r) {
        const std::vector<float> row(x.begin() + r * 96, x.begin() + (r + 1) * 96);
        CHECK(same_bits(run(level, weight, row, 1, 1), {all.begin() + r * 40, all.begin() + (r + 1) * 40}));
      }
    }
  }
}

TEST(matmul_bf16_adds_the_bias_and_then_activates) {
  std::mt19937 random(23);
  const Matrix matrix(DType::bf16, 37, 64, random);
  const Weight weight = matrix.as_pairs();
  const std::vector<float> x = random_floats(5 * 64, random);
  std::vector<float> bias = random_floats(37, random);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    const std::vector<float> plain = run(level, weight, x, 5, 1), both = run(level, weight, x, 5, 1, &bias, 4);  // relu
    for (size_t i = 0; i < plain.size(); ++i) CHECK(both[i] == std::max(0.0f, plain[i] + bias[i % 37]));
  }
}

TEST(matmul_bf16_rounds_its_result_as_round_rows_would) {
  std::mt19937 random(24);
  for (int64_t rows : {5, 32, 33, 69}) {  // of W: whole panels and parts
    const Matrix matrix(DType::bf16, rows, 96, random);
    const Weight weight = matrix.as_pairs();
    const std::vector<float> x = random_floats(70 * 96, random);
    std::vector<float> bias = random_floats(static_cast<size_t>(rows), random);
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      for (double activation : {0.0, 1.0, 3.0}) {
        const std::vector<float> wide = run(level, weight, x, 70, 2, &bias, activation);
        const std::vector<uint16_t> narrow = run<uint16_t>(level, weight, x, 70, 2, &bias, activation);
        for (size_t i = 0; i < wide.size(); ++i) CHECK(narrow[i] == float_to_bf16_normal(wide[i]));
      }
    }
  }
}

float rest(float value) { return rounded(value - rounded(value)); }

float expected_split(const float* x, const std::vector<float>& w) {
  float total = 0;
  for (size_t k = 0; k < w.size(); k += 32)
    for (int turn = 0; turn < 3; ++turn) {
      float sums[2] = {};
      for (size_t i = k; i < k + 32; ++i)
        sums[i % 2] += (turn == 2 ? rest(x[i]) : rounded(x[i])) * (turn == 1 ? rest(w[i]) : rounded(w[i]));
      total += sums[0] + sums[1];
    }
  return total;
}

TEST(split_products_are_the_specified_sums_at_every_level_and_near_float32) {
  std::mt19937 random(26);
  for (int64_t rows : {17, 64}) {
    const int64_t cols = 160;
    const Matrix matrix(DType::f32, rows, cols, random);
    const Weight weight = matrix.as_split();
    const std::vector<float> x = random_floats(static_cast<size_t>(70 * cols), random);
    std::vector<float> want;
    for (int64_t r = 0; r < 70; ++r)
      for (int64_t c = 0; c < rows; ++c) want.push_back(expected_split(x.data() + r * cols, matrix.row(c)));
    for (int64_t i = 0; i < 70 * rows; ++i) {
      double exact = 0;
      for (int64_t k = 0; k < cols; ++k)
        exact += double(x[size_t(i / rows * cols + k)]) * matrix.row(i % rows)[size_t(k)];
      CHECK(std::abs(want[size_t(i)] - exact) < 2e-3);  // bfloat16 alone is off by 0.1
    }
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      for (int64_t count : {1, 16, 33, 70}) {
        const std::vector<float> part(x.begin(), x.begin() + count * cols);
        const std::vector<float> some(want.begin(), want.begin() + count * rows);
        const std::vector<float> got = run<float, true>(level, weight, part, count, 2);
        CHECK(same_bits(got, some));
        const std::vector<uint16_t> narrow = run<uint16_t, true>(level, weight, part, count, 2);
        for (int64_t i = 0; i < count * rows; ++i) {
          const uint16_t* at = narrow.data() + i / rows * 2 * rows + i % rows;
          CHECK(at[0] == float_to_bf16_normal(got[size_t(i)]));
          CHECK(at[rows] == float_to_bf16_normal(got[size_t(i)] - rounded(got[size_t(i)])));
        }
      }
    }
  }
}

TEST(round_rows_is_nearest_even_at_every_level) {
  std::mt19937 random(25);
  std::vector<float> x = random_floats(5000, random);
  for (size_t i = 0; i < 1000; ++i) x[i] = bit_cast<float>(static_cast<uint32_t>(random()) & 0xFF7FFFFFu);  // no NaN
  for (float special : {0.0f, -0.0f, 1e-40f, -1e-40f, INFINITY, -INFINITY, 3.4e38f, 1.00390625f, 1.01171875f}) x.push_back(special);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    std::vector<uint16_t> y(x.size());
    const auto count = static_cast<int64_t>(x.size());
    run_kernel(level, "round_rows", {floats(x, 1, count)}, {halves(y, 1, count)}, {{"split", 0}}, 2);
    for (size_t i = 0; i < x.size(); ++i) CHECK(y[i] == float_to_bf16_normal(x[i]));
  }
}
