// A row read back out of panels is, bit for bit, what dequantising the file's row gives; sizes stay near the file's.
#include "pack/formats.h"
#include "tests/matmul_cases.h"

using namespace weft;
using namespace weft::test;

static std::vector<DType> packed_types() {
  std::vector<DType> types = {DType::f32, DType::f16, DType::bf16};
  for (const Format& format : kFormats) types.push_back(format.dtype);
  return types;
}

TEST(pack_then_read_row_equals_dequantise) {
  std::mt19937 random(5);
  for (DType dtype : packed_types())
    for (int64_t rows : {1, 15, 16, 17, 50}) {
      const Matrix matrix(dtype, rows, is_quantised(dtype) ? 768 : 37, random);
      const Weight packed = matrix.as_panels(), plain = matrix.as_rows();
      std::vector<float> got(static_cast<size_t>(matrix.cols));
      for (int64_t row = 0; row < rows; ++row) {
        read_row(packed, row, got.data());
        CHECK(same_bits(got, matrix.row(row)));
        read_row(plain, row, got.data());
        CHECK(same_bits(got, matrix.row(row)));
      }
    }
}

TEST(pack_follows_the_row_order) {
  std::mt19937 random(6);
  for (DType dtype : {DType::f16, DType::q4_1, DType::q6_k}) {
    const Matrix matrix(dtype, 21, 256, random);
    std::vector<int32_t> order(21);
    for (int32_t i = 0; i < 21; ++i) order[static_cast<size_t>(i)] = (i * 8) % 21;
    const Weight packed = matrix.as_panels(order.data());
    std::vector<float> got(256);
    for (int64_t row = 0; row < 21; ++row) {
      read_row(packed, row, got.data());
      CHECK(same_bits(got, matrix.row(order[static_cast<size_t>(row)])));
    }
  }
}

TEST(pack_sizes_stay_within_five_percent_of_the_file) {
  for (DType dtype : packed_types()) {
    const size_t file = bytes_of(dtype, 1024 * 2048), packed = panels_bytes(dtype, 1024, 2048);
    CHECK(packed >= file);
    CHECK(packed * 100 <= file * 105);
  }
}
