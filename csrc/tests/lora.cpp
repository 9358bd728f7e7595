// lora at every level agrees with double precision, in place too; rows without an adapter keep their bits, and neither
// the batch nor the team changes any.
#include "core/error.h"
#include "core/state.h"
#include "tests/arrays.h"
#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

namespace {

AdapterTable::Kept vector_of(const Floats& values) {
  auto weight = std::make_shared<Weight>();
  weight->rows = 1, weight->cols = static_cast<int64_t>(values.size());
  weight->bytes = values.size() * sizeof(float);
  weight->owned = Memory(weight->bytes);
  weight->data = weight->owned.data();
  std::memcpy(weight->owned.data(), values.data(), weight->bytes);
  return weight;
}

AdapterTable::Kept panels_of(const Matrix& matrix) { return std::make_shared<Weight>(matrix.as_panels()); }

struct Adapted {
  Matrix down, up;
  Floats scale, gain, shift;

  Adapted(DType dtype, int64_t rows, int64_t cols, int64_t rank, std::mt19937& random, unsigned seed)
      : down(dtype, rank, cols, random), up(dtype, rows, rank, random), scale(normal({rank}, seed)),
        gain(normal({rows}, seed + 1)), shift(normal({rows}, seed + 2)) {}

  void put(AdapterTable& table, int64_t index, int64_t matrix = 0) const {
    table.put(index, panels_of(down), panels_of(up), vector_of(scale), vector_of(gain), vector_of(shift), matrix);
  }

  double at(const Floats& y, const Floats& x, size_t row, size_t column) const {
    double sum = y[row * gain.size() + column];
    for (size_t r = 0; r < scale.size(); ++r) {
      double inner = 0;
      const auto a = down.row(static_cast<int64_t>(r));
      for (size_t k = 0; k < a.size(); ++k) inner += static_cast<double>(a[k]) * x[row * a.size() + k];
      sum += inner * scale[r] * up.row(static_cast<int64_t>(column))[r];
    }
    return sum * gain[column] + shift[column];
  }
};

}  // namespace

TEST(lora_adapts_the_rows_of_its_sequences_and_no_others) {
  std::mt19937 random(5);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (auto [rows, cols, rank] : {std::array<int64_t, 3>{1, 1, 1}, {33, 21, 17}, {70, 130, 3}}) {
      AdapterTable table(rows, cols);
      const Adapted one(dtype, rows, cols, rank, random, 1), two(dtype, rows, cols, rank + 4, random, 9);
      one.put(table, 1);
      two.put(table, 255);
      Operand operand;
      operand.table = &table;
      Ints segments = ints({0, 3, 4, 9, 11}), adapters = ints({255, 0, 1, 7}), picked = ints({3, 8, 0, 1, 2, 2, 10, 9, 4, 5, 7});
      for (const bool given : {false, true}) {
        Floats y = normal({11, rows}, 3, 1), x = normal({11, cols}, 4, 1);
        const std::vector<Operand> in{y.operand(), x.operand(), operand, segments.operand(), adapters.operand(),
                                      given ? picked.operand() : Operand{}};
        const auto width = static_cast<size_t>(rows);
        const auto owner = [&](size_t row) {
          const int32_t token = given ? picked[row] : static_cast<int32_t>(row);
          return token < 3 ? &two : token >= 4 && token < 9 ? &one : nullptr;
        };
        check_op("lora", in, {11, rows}, 1, {}, map(11 * width, [&](size_t i) {
                   const Adapted* adapted = owner(i / width);
                   return adapted ? adapted->at(y, x, i / width, i % width) : y[i];
                 }), 2e-5);
        for (const Level& level : levels()) {
          if (!level.present()) continue;
          Floats place = y, apart({11, rows});
          run_kernel(level, "lora", in, {apart.operand()}, {});
          std::vector<Operand> same = in;
          same[0] = place.operand();
          run_kernel(level, "lora", same, {place.operand()}, {}, 2);
          CHECK(same_bits(place, apart));
          for (size_t i = 0; i < y.size(); ++i) CHECK(owner(i / width) || apart[i] == y[i]);
        }
      }
    }
}

TEST(lora_with_starts_adapts_each_row_by_the_part_of_its_matrix) {
  std::mt19937 random(7);
  AdapterTable table(33, 21, 4);
  const Adapted first(DType::f32, 33, 21, 17, random, 1), third(DType::f32, 33, 21, 3, random, 9);
  first.put(table, 5, 0);
  third.put(table, 5, 2);
  Operand operand;
  operand.table = &table;
  Ints segments = ints({0, 3, 5}), adapters = ints({5, 0}), tokens = ints({0, 4, 2, 1, 3, 0, 2}), starts = ints({0, 3, 3, 6, 7});
  Floats y = normal({7, 33}, 3, 1), x = normal({7, 21}, 4, 1);
  const std::vector<Operand> in{y.operand(), x.operand(), operand, segments.operand(), adapters.operand(), tokens.operand(), starts.operand()};
  check_op("lora", in, {7, 33}, 1, {}, map(7 * 33, [&](size_t i) {
             const size_t row = i / 33;
             const Adapted* adapted = tokens[row] >= 3 ? nullptr : row < 3 ? &first : row < 6 ? &third : nullptr;
             return adapted ? adapted->at(y, x, row, i % 33) : y[i];
           }), 2e-5);
}

TEST(an_adapter_that_does_not_fit_its_table_is_refused) {
  std::mt19937 random(6);
  AdapterTable table(32, 48);
  const auto down = panels_of(Matrix(DType::f32, 4, 48, random)), up = panels_of(Matrix(DType::f32, 32, 4, random));
  const auto half = panels_of(Matrix(DType::f16, 32, 4, random)), whole = panels_of(Matrix(DType::f32, 32, 48, random));
  const auto scale = vector_of(normal({4}, 1)), row = vector_of(normal({32}, 2));
  const auto refused = [&](int64_t index, AdapterTable::Kept a, AdapterTable::Kept b, AdapterTable::Kept c,
                           AdapterTable::Kept gain, AdapterTable::Kept shift) {
    try {
      table.put(index, a, b, c, gain, shift);
    } catch (const Error&) {
      return !table.part(1).present();
    }
    return false;
  };
  CHECK(refused(0, down, up, scale, {}, {}));
  CHECK(refused(kAdapters, down, up, scale, {}, {}));
  CHECK(refused(1, down, {}, scale, {}, {}));
  CHECK(refused(1, down, up, {}, {}, {}));
  CHECK(refused(1, up, down, scale, {}, {}));
  CHECK(refused(1, down, half, scale, {}, {}));
  CHECK(refused(1, down, up, row, {}, {}));
  CHECK(refused(1, down, up, scale, scale, {}));
  CHECK(refused(1, down, up, scale, {}, scale));
  CHECK(refused(1, {}, up, {}, {}, {}));
  CHECK(refused(1, {}, whole, {}, row, {}));
  table.put(1, {}, whole, {}, {}, row);
  CHECK(table.part(1).present());
  table.clear(1);
  CHECK(!table.part(1).present());
}
