// A row read back out of panels is, bit for bit, what dequantising the file's row gives; sizes stay near the file's.
#include <algorithm>

#include "core/error.h"
#include "pack/formats.h"
#include "pack/packing.h"
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

TEST(pack_reads_blocks_at_odd_addresses) {
  std::mt19937 random(7);
  for (DType dtype : packed_types()) {
    const Matrix matrix(dtype, 19, 512, random);
    const Weight even = matrix.as_panels();
    std::vector<std::byte> moved(matrix.file.size() + 1);
    std::copy(matrix.file.begin(), matrix.file.end(), moved.begin() + 1);
    Memory odd(even.bytes);
    pack_panels(dtype, moved.data() + 1, matrix.row_bytes(), nullptr, matrix.rows, matrix.cols, odd.data(), 0, 2);
    CHECK(std::equal(odd.data(), odd.data() + even.bytes, even.data));
  }
}

// The packed form of `matrix` by a team, beside others that are packed with it.
static std::vector<std::byte> packed_by(int threads, PackPart pack, const Matrix& matrix, size_t bytes) {
  Memory first(bytes), second(bytes);
  Packing packing(threads, {std::span<const std::byte>()});
  for (const Memory* out : {&first, &second})
    packing.add({pack, matrix.dtype, matrix.file.data(), matrix.row_bytes(), nullptr, matrix.rows, matrix.cols, out->data()});
  packing.start();
  packing.finish();
  packing.finish();  // again: nothing is left to do
  CHECK(std::equal(first.data(), first.data() + bytes, second.data()));
  return {first.data(), first.data() + bytes};
}

TEST(pack_by_a_team_gives_the_same_bytes) {
  std::mt19937 random(8);
  const Matrix matrix(DType::q4_1, 4000, 1024, random);  // several parts
  const Weight alone = matrix.as_panels(), pairs = matrix.as_pairs(), split = matrix.as_split();
  for (int threads : {1, 2, 3}) {
    CHECK(std::ranges::equal(packed_by(threads, &pack_panels, matrix, alone.bytes), std::span(alone.data, alone.bytes)));
    CHECK(std::ranges::equal(packed_by(threads, &pack_pairs, matrix, pairs.bytes), std::span(pairs.data, pairs.bytes)));
    CHECK(std::ranges::equal(packed_by(threads, &pack_split, matrix, split.bytes), std::span(split.data, split.bytes)));
  }
}

TEST(pack_halves_rounds_every_type) {
  std::mt19937 random(10);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0}) {
    const Matrix matrix(dtype, 37, 64, random);
    std::vector<std::byte> packed = packed_by(2, &pack_halves, matrix, panels_bytes(DType::f16, 37, 64));
    Weight weight;
    weight.data = packed.data(), weight.dtype = DType::f16, weight.layout = Layout::panels, weight.rows = 37, weight.cols = 64;
    for (int64_t row = 0; row < 37; ++row) {
      std::vector<float> read(64), want = matrix.row(row);
      read_row(weight, row, read.data());
      for (float& value : want) value = half_to_float(float_to_half(value));
      CHECK(read == want);
    }
  }
}

TEST(pack_by_a_team_says_what_went_wrong) {
  std::mt19937 random(9);
  const Matrix matrix(DType::q4_1, 4000, 1024, random);
  Memory out(matrix.as_panels().bytes);
  Packing packing(2);
  packing.add({&pack_panels, DType::i32, matrix.file.data(), matrix.row_bytes(), nullptr, matrix.rows, matrix.cols, out.data()});
  packing.start();
  for (int asked = 0; asked < 2; ++asked) {  // it stays wrong
    bool thrown = false;
    try {
      packing.finish();
    } catch (const Error& error) {
      thrown = error.kind == ErrorKind::unsupported;
    }
    CHECK(thrown);
  }
}

TEST(pack_left_alone_ends_with_its_team) {
  std::mt19937 random(10);
  const Matrix matrix(DType::q4_1, 4000, 1024, random);
  Memory out(matrix.as_panels().bytes);
  Packing packing(3);
  packing.add({&pack_panels, matrix.dtype, matrix.file.data(), matrix.row_bytes(), nullptr, matrix.rows, matrix.cols, out.data()});
  packing.start();
}

// Hundredths of a bit a weight, packed, of the types whose files have less than a code for each weight.
static size_t bits_of_grids(DType dtype) {
  switch (dtype) {
    case DType::iq3_s: case DType::iq3_xxs: return 432;
    case DType::iq2_s: case DType::iq2_xs: case DType::iq1_m: return 357;
    case DType::iq2_xxs: case DType::iq1_s: return 332;
    case DType::tq1_0: case DType::tq2_0: return 232;
    default: return 0;
  }
}

TEST(pack_sizes_stay_within_six_percent_of_the_file_or_are_those_of_the_codes) {
  for (DType dtype : packed_types()) {
    const size_t file = bytes_of(dtype, 1024 * 2048), packed = panels_bytes(dtype, 1024, 2048);
    CHECK(packed >= file);
    if (const size_t bits = bits_of_grids(dtype)) CHECK(packed * 800 <= 1024 * 2048 * bits);
    else CHECK(packed * 100 <= file * 106);  // mxfp4: a scale of 8 bits is stored as 16
  }
}
