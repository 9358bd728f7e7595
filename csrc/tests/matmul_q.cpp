// matmul_q equals, bit for bit and at every level, the formulas of docs/design/core.md written out; so a row's result
// does not depend on the batch or the team; and it is close to the product of the dequantised weights.
#include "pack/formats.h"
#include "pack/plain.h"
#include "tests/quantise_reference.h"

using namespace weft;
using namespace weft::test;

namespace {

// One block of one output element, added to acc.
template <int block>
float add_block(const Format& f, const Plain& w, const A8<block>& x, float acc) {
  const float d = scale_of(f, w), m = f.zeros() ? 0.0f - d * half_to_float(w.m) : half_to_float(w.m);
  const int subs = f.subs ? f.subs : 1, width = block / subs;
  int64_t total = 0, low = 0;
  for (int j = 0; j < subs; ++j) {
    int64_t products = 0, sum = 0;
    for (int i = j * width; i < (j + 1) * width; ++i) {
      products += f.value(w.code[i]) * x.q[i];
      sum += x.q[i];
    }
    const int scale = f.signed_subs ? static_cast<int8_t>(w.scale[j]) : w.scale[j];
    total += f.subs ? scale * products : products;
    low += f.subs ? w.min[j] * sum : sum;
  }
  acc = std::fma(d * x.d, static_cast<float>(total), acc);
  if (!f.mins) return acc;
  if (!f.subs) return std::fma(m, x.d * static_cast<float>(low), acc);
  return std::fma(-(m * x.d), static_cast<float>(low), acc);
}

template <int block>
std::vector<float> reference(const Format& f, const Matrix& matrix, const std::vector<A8<block>>& x, int64_t rows) {
  const int64_t blocks = matrix.cols / block;
  std::vector<float> y(static_cast<size_t>(rows * matrix.rows), 0.0f);
  for (int64_t n = 0; n < matrix.rows; ++n)
    for (int64_t b = 0; b < blocks; ++b) {
      Plain plain;
      spread(matrix.dtype, matrix.file.data() + n * matrix.row_bytes() + b * info(matrix.dtype).bytes, plain);
      for (int64_t m = 0; m < rows; ++m) {
        float& acc = y[m * matrix.rows + n];
        acc = add_block(f, plain, x[m * blocks + b], acc);
      }
    }
  return y;
}

template <int block>
std::vector<float> run(const Level& level, const Weight& weight, std::vector<A8<block>> x, int64_t rows, int workers,
                       std::vector<float>* bias = nullptr, Activation activation = Activation::none) {
  std::vector<float> y(static_cast<size_t>(rows * weight.rows));
  Operand w, none;
  w.weight = &weight;
  const DType a8 = block == 32 ? DType::a8_32 : DType::a8_256;
  Operand in{reinterpret_cast<std::byte*>(x.data()), a8, 2, {rows, weight.cols}};
  run_kernel(level, "matmul_q", {in, w, bias ? floats(*bias, 1, weight.rows) : none}, {floats(y, rows, weight.rows)},
             {{"activation", static_cast<double>(activation)}}, workers);
  return y;
}

template <int block>
void check_matrix(const Format& f, int64_t rows, int64_t cols, std::mt19937& random) {
  const Matrix matrix(f.dtype, rows, cols, random);
  const Weight weight = matrix.as_panels();
  const std::vector<float> x = random_floats(static_cast<size_t>(64 * cols), random);
  std::vector<A8<block>> codes;
  for (size_t i = 0; i < x.size(); i += block) codes.push_back(quantise_reference<block>(&x[i]));
  const std::vector<float> want = reference(f, matrix, codes, 64);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    for (int64_t m : {1, 2, 3, 7, 9, 13, 16, 37, 48, 64}) {
      const std::vector<A8<block>> part(codes.begin(), codes.begin() + m * cols / block);
      const std::vector<float> expected(want.begin(), want.begin() + m * rows);
      for (int workers : {1, 2, 3}) CHECK(same_bits(run(level, weight, part, m, workers), expected));
    }
  }
  double error = 0, size = 0;  // against float weights and activations: int8 activations cost under 2 %
  for (int64_t n = 0; n < rows; ++n) {
    const std::vector<float> w = matrix.row(n);
    for (int64_t m = 0; m < 64; ++m) {
      double exact = 0;
      for (int64_t k = 0; k < cols; ++k) exact += double(x[m * cols + k]) * w[k];
      error += std::pow(exact - want[m * rows + n], 2);
      size += exact * exact;
    }
  }
  CHECK(std::sqrt(error / size) < 0.02);
}

}  // namespace

TEST(matmul_q_equals_the_formulas_at_every_level) {
  std::mt19937 random(8);
  for (const Format& f : kFormats)
    for (int64_t rows : {1, 15, 16, 17, 100}) {
      if (f.block == 32)
        for (int64_t cols : {32, 96, 288}) check_matrix<32>(f, rows, cols, random);
      else
        for (int64_t cols : {256, 768}) check_matrix<256>(f, rows, cols, random);
    }
}

// Codes, scales and activations at the ends of their ranges: where a 16-bit or a saturating step would show.
template <int block>
static void check_extremes(const Format& f, int pattern, std::mt19937& random) {
  Matrix matrix(f.dtype, 17, 512, random);
  const auto step = static_cast<size_t>(info(f.dtype).bytes);
  std::fill(matrix.file.begin(), matrix.file.end(), static_cast<std::byte>(pattern));
  for (size_t at = 0; at < matrix.file.size(); at += step) {
    if (f.powers()) matrix.file[at] = std::byte{127};  // a scale of one
    if (f.dtype == DType::iq1_m) set_iq1m_scale(&matrix.file[at], float_to_half(1.0f));
    for (int field : half_fields(f.dtype)) {
      const uint16_t one = float_to_half(1.0f);
      std::memcpy(&matrix.file[at + static_cast<size_t>(field)], &one, 2);
    }
  }
  const Weight weight = matrix.as_panels();
  for (int sign : {-1, 1}) {
    std::vector<A8<block>> x(19 * 512 / block);
    for (A8<block>& part : x) {
      part.d = 0.5f;
      for (int8_t& q : part.q) q = static_cast<int8_t>(127 * sign);
      for (int16_t& sum : part.sum) sum = static_cast<int16_t>(16 * 127 * sign);
    }
    for (const Level& level : levels())
      if (level.present()) CHECK(same_bits(run(level, weight, x, 19, 1), reference(f, matrix, x, 19)));
  }
}

TEST(matmul_q_is_exact_at_the_extremes) {
  std::mt19937 random(9);
  for (const Format& f : kFormats)
    for (int pattern : {0x00, 0xFF, 0x80, 0x7F}) {
      if (f.block == 32) check_extremes<32>(f, pattern, random);
      else check_extremes<256>(f, pattern, random);
    }
}

TEST(matmul_q_adds_the_bias_and_then_activates) {
  std::mt19937 random(11);
  const Matrix matrix(DType::q4_1, 37, 64, random);
  const Weight weight = matrix.as_panels();
  const std::vector<float> x = random_floats(5 * 64, random);
  std::vector<float> bias = random_floats(37, random);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    const std::vector<A8<32>> codes = quantise<32>(level, x, 5, 64, 1, 0);
    const std::vector<float> plain = run(level, weight, codes, 5, 1);
    const std::vector<float> relu = run(level, weight, codes, 5, 2, &bias, Activation::relu);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(relu[i] == std::max(0.0f, plain[i] + bias[i % 37]));
  }
}
