// embedding gives the table's rows, dequantised to the bit, from either layout; an id outside the table gives zeros.
#include "pack/formats.h"
#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

static void check_table(const Matrix& matrix, const Weight& table) {
  std::vector<int32_t> ids = {0, 20, 7, 7, 15, 16, 3, 19, -1, 21};
  const auto tokens = static_cast<int64_t>(ids.size());
  const Operand in{reinterpret_cast<std::byte*>(ids.data()), DType::i32, 1, {tokens}};
  Operand weight;
  weight.weight = &table;
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    std::vector<float> y(static_cast<size_t>(tokens * matrix.cols), 9.0f);
    run_kernel(level, "embedding", {in, weight}, {floats(y, tokens, matrix.cols)}, {}, 2);
    for (int64_t t = 0; t < tokens; ++t) {
      const bool inside = ids[t] >= 0 && ids[t] < matrix.rows;
      const std::vector<float> want = inside ? matrix.row(ids[t]) : std::vector<float>(matrix.cols, 0.0f);
      CHECK(same_bits({y.begin() + t * matrix.cols, y.begin() + (t + 1) * matrix.cols}, want));
    }
  }
}

TEST(embedding_gives_rows_of_either_layout) {
  std::mt19937 random(12);
  for (int type = 0; type <= static_cast<int>(DType::q4_z); ++type) {
    const auto dtype = static_cast<DType>(type);
    if (info(dtype).block == 1 && dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) continue;
    const Matrix matrix(dtype, 21, is_quantised(dtype) ? 256 : 33, random);
    check_table(matrix, matrix.as_rows());
    if (has_panels(dtype)) check_table(matrix, matrix.as_panels());
  }
}
