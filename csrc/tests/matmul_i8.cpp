// quantise_tokens and matmul_i8 equal, bit for bit and at every level, what weft/ops/quant.py says; so a row's result
// depends on nothing but itself.
#include <algorithm>
#include <cmath>

#include "core/levels.h"
#include "matmul_cases.h"
#include "test.h"

using namespace weft;
using namespace weft::test;

namespace {

struct Rows {
  std::vector<int8_t> codes;
  std::vector<float> headers;
  int64_t rows, cols;
  Rows(int64_t rows, int64_t cols)
      : codes(static_cast<size_t>(rows * cols)), headers(static_cast<size_t>(rows * 3)), rows(rows), cols(cols) {}
  Operand codes_operand() { return {reinterpret_cast<std::byte*>(codes.data()), DType::i8, 2, {rows, cols}}; }
  Operand headers_operand() { return floats(headers, rows, 3); }
  bool operator==(const Rows& other) const { return codes == other.codes && same_bits(headers, other.headers); }
  // The first rows.
  Rows part(int64_t count) const {
    Rows some(count, cols);
    std::copy_n(codes.begin(), some.codes.size(), some.codes.begin());
    std::copy_n(headers.begin(), some.headers.size(), some.headers.begin());
    return some;
  }
};

std::vector<float> factors_of(const Weight& weight) {
  const auto* from = reinterpret_cast<const float*>(Quads{weight.data, weight.rows, weight.cols}.factors());
  return {from, from + weight.cols};
}

Rows expected_rows(const std::vector<float>& x, int64_t rows, int64_t cols, const std::vector<float>& factors) {
  Rows want(rows, cols);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> row(x.begin() + r * cols, x.begin() + (r + 1) * cols), size(row);
    for (size_t k = 0; k < row.size(); ++k) size[k] = std::abs(row[k] *= factors[k]);
    const size_t column = static_cast<size_t>(std::max_element(size.begin(), size.end()) - size.begin());
    const float top = size[column];
    std::nth_element(size.begin(), size.begin() + 1, size.end(), std::greater<float>());
    const float span = std::max(size[1], top / 5.0f), steps = 127.0f / span;
    if (!std::isfinite(steps)) continue;
    const bool wide = top > span;
    const float sign = wide && row[column] < 0 ? -1.0f : 1.0f;
    for (size_t k = 0; k < row.size(); ++k)
      want.codes[static_cast<size_t>(r * cols) + k] =
          static_cast<int8_t>(std::clamp(std::nearbyint(row[k] * (sign * steps)), -127.0f, 127.0f));
    float* header = want.headers.data() + r * 3;
    header[0] = sign * (span / 127.0f);
    header[1] = wide ? static_cast<float>(column) : 0.0f;
    header[2] = wide ? std::clamp(std::nearbyint(top * steps) - 127.0f, 0.0f, 508.0f) : 0.0f;
  }
  return want;
}

Rows quantise(const Level& level, std::vector<float> x, int64_t rows, int64_t cols, const Weight* reader, int workers) {
  Rows got(rows, cols);
  Operand weight;
  weight.weight = reader;
  run_kernel(level, "quantise_tokens", {floats(x, rows, cols), weight}, {got.codes_operand(), got.headers_operand()}, {},
             workers);
  return got;
}

std::vector<Operand> operands(Rows& x, const Weight& weight, std::vector<float>* bias, const Weight* reader) {
  Operand w, none, next;
  w.weight = &weight, next.weight = reader;
  return {x.codes_operand(), x.headers_operand(), w, bias ? floats(*bias, 1, weight.rows) : none, next};
}

std::vector<float> multiply(const Level& level, const Weight& weight, Rows x, int workers,
                            std::vector<float>* bias = nullptr, double activation = 0) {
  std::vector<float> y(static_cast<size_t>(x.rows * weight.rows));
  run_kernel(level, "matmul_i8", operands(x, weight, bias, nullptr), {floats(y, x.rows, weight.rows)},
             {{"activation", activation}, {"equalised", 0}, {"quantised", 0}}, workers);
  return y;
}

Rows multiply_rows(const Level& level, const Weight& weight, Rows x, int workers, std::vector<float>* bias,
                   double activation, const Weight* reader) {
  Rows y(x.rows, weight.rows);
  run_kernel(level, "matmul_i8", operands(x, weight, bias, reader), {y.codes_operand(), y.headers_operand()},
             {{"activation", activation}, {"equalised", 0}, {"quantised", 1}}, workers);
  return y;
}

// One output, from a row of W as its file has it.
float expected(const Rows& x, int64_t r, std::vector<float> w, const std::vector<float>& factors, float bias) {
  float largest = 0;
  for (size_t k = 0; k < w.size(); ++k) largest = std::max(largest, std::abs(w[k] /= factors[k]));
  int64_t sum = 0;
  for (size_t k = 0; k < w.size(); ++k) {
    const auto code = static_cast<int64_t>(std::nearbyint(w[k] * (127.0f / largest)));
    const float* header = x.headers.data() + r * 3;
    const int64_t excess = k == static_cast<size_t>(header[1]) ? static_cast<int64_t>(header[2]) : 0;
    sum += code * (x.codes[static_cast<size_t>(r * x.cols) + k] + excess);
  }
  return std::fma(static_cast<float>(sum) * (largest / 127.0f), x.headers[static_cast<size_t>(r * 3)], bias);
}

// Normal, with some elements far out.
std::vector<float> spiky(size_t count, std::mt19937& random) {
  std::vector<float> x = random_floats(count, random);
  for (size_t i = 0; i < count; i += 37 + random() % 200) x[i] *= 12;
  return x;
}

}  // namespace

TEST(quantise_tokens_gives_the_specified_codes_at_every_level) {
  std::mt19937 random(31);
  for (int64_t cols : {64, 192, 1536}) {
    const Matrix matrix(DType::bf16, 9, cols, random);
    const Weight plain = matrix.as_quads(false), equal = matrix.as_quads(true);
    CHECK(factors_of(plain) == std::vector<float>(static_cast<size_t>(cols), 1.0f));
    const int64_t rows = 23;
    std::vector<float> x = spiky(static_cast<size_t>(rows * cols), random);
    std::fill_n(x.begin(), cols, 0.0f);                        // nothing
    std::fill_n(x.begin() + cols, cols, -2.5f);                // all the same
    std::fill_n(x.begin() + 2 * cols, cols, 0.0f), x[size_t(2 * cols + 40)] = -7;  // one alone
    std::fill_n(x.begin() + 3 * cols, cols, 1e-44f);           // too small for a factor
    x[size_t(4 * cols)] = 90, x[size_t(4 * cols + 17)] = -90;  // the largest twice, in two lanes
    x[size_t(5 * cols)] = 90, x[size_t(5 * cols + 16)] = 90;   // and in one
    for (const Weight* reader : {static_cast<const Weight*>(nullptr), &equal}) {
      const Rows want = expected_rows(x, rows, cols, reader ? factors_of(*reader) : factors_of(plain));
      for (const Level& level : levels())
        if (level.present())
          for (int workers : {1, 3}) CHECK(quantise(level, x, rows, cols, reader, workers) == want);
    }
  }
}

TEST(matmul_i8_gives_the_specified_sums_at_every_level) {
  std::mt19937 random(32);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int64_t rows : {1, 15, 17, 100})
      for (int64_t cols : {64, 320}) {
        const Matrix matrix(dtype, rows, cols, random);
        std::vector<float> bias = random_floats(static_cast<size_t>(rows), random);
        for (bool equalise : {false, true}) {
          const Weight weight = matrix.as_quads(equalise);
          const Rows x = expected_rows(spiky(static_cast<size_t>(70 * cols), random), 70, cols, factors_of(weight));
          std::vector<float> want;
          for (int64_t r = 0; r < 70; ++r)
            for (int64_t c = 0; c < rows; ++c)
              want.push_back(expected(x, r, matrix.row(c), factors_of(weight), bias[static_cast<size_t>(c)]));
          for (const Level& level : levels()) {
            if (!level.present()) continue;
            for (int64_t count : {1, 2, 16, 17, 33, 70}) {
              const std::vector<float> some(want.begin(), want.begin() + count * rows);
              for (int workers : {1, 3}) CHECK(same_bits(multiply(level, weight, x.part(count), workers, &bias), some));
            }
          }
        }
      }
}

TEST(matmul_i8_is_near_the_product_of_floats) {
  std::mt19937 random(33);
  const int64_t cols = 384, rows = 48;
  const Matrix matrix(DType::f32, rows, cols, random);
  const Weight weight = matrix.as_quads(true);
  const std::vector<float> x = spiky(static_cast<size_t>(40 * cols), random);
  const std::vector<float> y = multiply(levels()[0], weight, expected_rows(x, 40, cols, factors_of(weight)), 1);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < 40 * rows; ++i) {
    double exact = 0;
    for (int64_t k = 0; k < cols; ++k) exact += double(x[size_t(i / rows * cols + k)]) * matrix.row(i % rows)[size_t(k)];
    error += (y[size_t(i)] - exact) * (y[size_t(i)] - exact), norm += exact * exact;
  }
  CHECK(std::sqrt(error / norm) < 0.03);
}

TEST(matmul_i8_of_many_and_long_rows_is_the_same_in_parts) {
  std::mt19937 random(34);
  const Matrix matrix(DType::f32, 64, 3072, random);
  const Weight weight = matrix.as_quads(false);
  const Rows x = expected_rows(spiky(300 * 3072, random), 300, 3072, factors_of(weight));
  for (const Level& level : levels()) {
    if (!level.present() || std::strcmp(level.name, "scalar") == 0) continue;
    const std::vector<float> all = multiply(level, weight, x, 2);
    const Rows narrow = multiply_rows(level, weight, x, 2, nullptr, 1, nullptr);
    for (int64_t count : {1, 47, 131}) {
      CHECK(same_bits(multiply(level, weight, x.part(count), 1), {all.begin(), all.begin() + count * 64}));
      CHECK(multiply_rows(level, weight, x.part(count), 3, nullptr, 1, nullptr) == narrow.part(count));
    }
  }
}

TEST(matmul_i8_quantises_its_result_as_quantise_tokens_would) {
  std::mt19937 random(35);
  for (int64_t rows : {64, 192}) {
    const Matrix matrix(DType::bf16, rows, 128, random), next(DType::f32, 20, rows, random);
    const Weight weight = matrix.as_quads(false), reader = next.as_quads(true);
    std::vector<float> bias = random_floats(static_cast<size_t>(rows), random);
    const Rows x = expected_rows(spiky(70 * 128, random), 70, 128, factors_of(weight));
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      for (double activation : {0.0, 4.0})  // none, relu
        for (const Weight* to : {static_cast<const Weight*>(nullptr), &reader})
          for (int workers : {1, 2}) {
            const std::vector<float> wide = multiply(level, weight, x, workers, &bias, activation);
            CHECK(multiply_rows(level, weight, x, workers, &bias, activation, to) ==
                  quantise(level, wide, 70, rows, to, 1));
          }
    }
  }
}

TEST(wild_headers_stay_in_bounds) {
  std::mt19937 random(36);
  const Matrix matrix(DType::f32, 33, 64, random);
  const Weight weight = matrix.as_quads(false);
  Rows x(5, 64);
  x.headers = {1, 1e30f, 1e30f, 1, -5, -5, 1, NAN, NAN, 1, INFINITY, -INFINITY, 1, 63.5f, 3.5f};
  std::vector<float> want;
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t c = 0; c < 33; ++c) {
      Rows bounded(1, 64);
      bounded.headers = {1, r == 0 || r >= 3 ? 63.0f : 0.0f, r == 0 ? 508.0f : r == 4 ? 3.0f : 0.0f};
      want.push_back(expected(bounded, 0, matrix.row(c), factors_of(weight), 0));
    }
  for (const Level& level : levels())
    if (level.present()) CHECK(same_bits(multiply(level, weight, x, 1), want));
}
