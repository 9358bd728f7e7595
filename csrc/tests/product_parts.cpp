// Products with trained matrices by parts have the bits of matmul_parts, as they are and turned around.
#include "core/levels.h"
#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

namespace {

std::vector<const Level*> with_parts() {
  std::vector<const Level*> found;
  for (const Level& level : levels())
    if (level.present() && find_kernel(level, "product_parts")) found.push_back(&level);
  return found;
}

std::vector<float> turned(const std::vector<float>& values, int64_t rows, int64_t cols) {
  std::vector<float> made(values.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) made[size_t(c * rows + r)] = values[size_t(r * cols + c)];
  return made;
}

Operand whole(std::vector<int32_t>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::i32, 1, {static_cast<int64_t>(values.size())}};
}

Operand stack(std::vector<float>& values, int64_t count, int64_t rows, int64_t cols) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::f32, 3, {count, rows, cols}};
}

// x [rows, depth] times a matrix [outputs, depth], by matmul_parts.
std::vector<float> product(const Level& level, std::vector<float> x, const std::vector<float>& matrix, int64_t rows,
                           int64_t outputs, int64_t depth) {
  std::mt19937 random(1);
  Matrix packed(DType::f32, outputs, depth, random);
  std::memcpy(packed.file.data(), matrix.data(), packed.file.size());
  const Weight weight = packed.as_panels();
  std::vector<float> y(size_t(rows * outputs));
  Operand w, none;
  w.weight = &weight;
  run_kernel(level, "matmul_parts", {floats(x, rows, depth), w, none}, {floats(y, rows, outputs)}, {{"activation", 0.0}});
  return y;
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {16, 32}, {17, 65}, {130, 384}, {100, 801}};  // outputs, depth

}  // namespace

TEST(products_with_trained_matrices_by_parts_are_those_of_packed_ones) {
  std::mt19937 random(71);
  for (auto [outputs, depth] : kShapes) {
    std::vector<float> matrix = random_floats(size_t(outputs * depth), random);
    std::vector<float> around = turned(matrix, outputs, depth);
    for (int64_t rows : {0, 1, 7, 16, 33, 70, 450}) {
      std::vector<float> x = random_floats(size_t(rows * depth), random);
      for (const Level* level : with_parts()) {
        const std::vector<float> want = product(*level, x, matrix, rows, outputs, depth);
        for (int workers : {1, 3}) {
          std::vector<float> y(want.size()), back(want.size());
          run_kernel(*level, "product_parts", {floats(x, rows, depth), floats(matrix, outputs, depth)}, {floats(y, rows, outputs)}, {},
                     workers);
          run_kernel(*level, "product_back_parts", {floats(x, rows, depth), floats(around, depth, outputs)},
                     {floats(back, rows, outputs)}, {}, workers);
          CHECK(same_bits(y, want));
          CHECK(same_bits(back, want));
        }
      }
    }
  }
}

TEST(products_with_stacks_of_trained_matrices_by_parts_take_each_its_rows) {
  std::mt19937 random(72);
  constexpr int64_t kRows = 90, kOutputs = 40, kDepth = 70, kCount = 4;
  std::vector<int32_t> starts = {0, 33, 33, 34, 90};
  std::vector<float> x = random_floats(kRows * kDepth, random), matrices, around;
  std::vector<std::vector<float>> each;
  for (int64_t e = 0; e < kCount; ++e) {
    each.push_back(random_floats(kOutputs * kDepth, random));
    const std::vector<float> other = turned(each.back(), kOutputs, kDepth);
    matrices.insert(matrices.end(), each.back().begin(), each.back().end());
    around.insert(around.end(), other.begin(), other.end());
  }
  for (const Level* level : with_parts()) {
    std::vector<float> want;
    for (size_t e = 0; e < kCount; ++e) {
      const int64_t count = starts[e + 1] - starts[e];
      const auto made = product(*level, {x.begin() + starts[e] * kDepth, x.begin() + starts[e + 1] * kDepth}, each[e], count, kOutputs, kDepth);
      want.insert(want.end(), made.begin(), made.end());
    }
    for (int workers : {1, 3}) {
      std::vector<float> y(want.size()), back(want.size());
      run_kernel(*level, "product_parts", {floats(x, kRows, kDepth), stack(matrices, kCount, kOutputs, kDepth), whole(starts)},
                 {floats(y, kRows, kOutputs)}, {}, workers);
      run_kernel(*level, "product_back_parts", {floats(x, kRows, kDepth), stack(around, kCount, kDepth, kOutputs), whole(starts)},
                 {floats(back, kRows, kOutputs)}, {}, workers);
      CHECK(same_bits(y, want));
      CHECK(same_bits(back, want));
    }
  }
}
