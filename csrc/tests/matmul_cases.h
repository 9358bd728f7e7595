// matmul_cases: what the tests of the products share: random weights of any type, packed or not, and running a product.
#pragma once
#include <cstring>
#include <random>
#include <vector>

#include "core/half.h"
#include "core/weight.h"
#include "core/words.h"
#include "pack/pairs.h"
#include "pack/panels.h"
#include "pack/quads.h"
#include "quant/dequant.h"
#include "tests/test.h"

namespace weft::test {

inline std::vector<float> random_floats(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// Where the half-precision scales lie in a block of the type: offsets in bytes.
inline std::vector<int> half_fields(DType dtype) {
  switch (dtype) {
    case DType::q4_1: case DType::q4_z: case DType::q5_1: case DType::q4_k: case DType::q5_k: return {0, 2};
    case DType::q2_k: return {80, 82};
    case DType::q3_k: return {108};
    case DType::q6_k: return {208};
    case DType::tq1_0: return {52};
    case DType::tq2_0: return {64};
    case DType::iq1_m: case DType::mxfp4: return {};
    default: return {0};
  }
}

// The top nibbles of the four scale words of an iq1_m block are its scale.
inline void set_iq1m_scale(std::byte* block, uint16_t half) {
  for (int i = 0; i < 4; ++i) {
    std::byte& high = block[48 + 2 * i + 1];
    high = (high & std::byte{15}) | static_cast<std::byte>((half >> (4 * i) & 15) << 4);
  }
}

// Random bytes of `count` elements, with scales of ordinary size.
inline std::vector<std::byte> random_weights(DType dtype, size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(bytes_of(dtype, count));
  const auto step = static_cast<size_t>(info(dtype).bytes);
  for (size_t at = 0; at < bytes.size(); at += step) {
    const float value = normal(random);
    const uint16_t half = float_to_half(value), brain = float_to_bf16(value);
    if (dtype == DType::f32) std::memcpy(&bytes[at], &value, 4);
    else if (dtype == DType::f16) std::memcpy(&bytes[at], &half, 2);
    else if (dtype == DType::bf16) std::memcpy(&bytes[at], &brain, 2);
    else {
      for (size_t i = 0; i < step; ++i) bytes[at + i] = static_cast<std::byte>(random() & 255);
      for (int field : half_fields(dtype)) {
        const uint16_t scale = float_to_half(0.02f * normal(random));
        std::memcpy(&bytes[at + static_cast<size_t>(field)], &scale, 2);
      }
      if (dtype == DType::mxfp4) bytes[at] = static_cast<std::byte>(120 + random() % 10);
      if (dtype == DType::iq1_m) set_iq1m_scale(&bytes[at], 0x2A66);
    }
  }
  return bytes;
}

struct Matrix {
  DType dtype;
  int64_t rows, cols;
  std::vector<std::byte> file;  // as a checkpoint has it

  Matrix(DType dtype, int64_t rows, int64_t cols, std::mt19937& random)
      : dtype(dtype), rows(rows), cols(cols), file(random_weights(dtype, static_cast<size_t>(rows * cols), random)) {}

  size_t row_bytes() const { return bytes_of(dtype, static_cast<size_t>(cols)); }
  Weight as_rows() const {
    Weight weight;
    weight.dtype = dtype, weight.rows = rows, weight.cols = cols;
    weight.data = file.data(), weight.bytes = file.size();
    return weight;
  }
  Weight as_panels(const int32_t* order = nullptr) const {
    Weight weight;
    weight.dtype = dtype, weight.layout = Layout::panels, weight.rows = rows, weight.cols = cols;
    weight.bytes = panels_bytes(dtype, rows, cols);
    weight.owned = Memory(weight.bytes);
    weight.data = weight.owned.data();
    pack_panels(dtype, file.data(), row_bytes(), order, rows, cols, weight.owned.data(), 0, (rows + 15) / 16);
    return weight;
  }
  Weight as_pairs() const {
    Weight weight;
    weight.dtype = DType::bf16, weight.layout = Layout::pairs, weight.rows = rows, weight.cols = cols;
    weight.bytes = pairs_bytes(rows, cols);
    weight.owned = Memory(weight.bytes);
    weight.data = weight.owned.data();
    pack_pairs(dtype, file.data(), row_bytes(), nullptr, rows, cols, weight.owned.data(), 0, (rows + 15) / 16);
    return weight;
  }
  Weight as_split() const {
    Weight weight;
    weight.dtype = DType::bf16, weight.layout = Layout::pairs, weight.rows = rows, weight.cols = 2 * cols;
    weight.bytes = pairs_bytes(rows, 2 * cols);
    weight.owned = Memory(weight.bytes);
    weight.data = weight.owned.data();
    pack_split(dtype, file.data(), row_bytes(), nullptr, rows, cols, weight.owned.data(), 0, (rows + 15) / 16);
    return weight;
  }
  Weight as_quads(bool equalise) const {
    Weight weight;
    weight.dtype = dtype, weight.layout = Layout::quads, weight.rows = rows, weight.cols = cols;
    weight.bytes = quads_bytes(rows, cols);
    weight.owned = Memory(weight.bytes);
    weight.data = weight.owned.data();
    write_factors(dtype, file.data(), row_bytes(), rows, cols, equalise, weight.owned.data());
    pack_quads(dtype, file.data(), row_bytes(), nullptr, rows, cols, weight.owned.data(), 0, (rows + 15) / 16);
    return weight;
  }
  std::vector<float> row(int64_t i) const {
    std::vector<float> values(static_cast<size_t>(cols));
    dequantise(dtype, file.data() + static_cast<size_t>(i) * row_bytes(), values.data(), values.size());
    return values;
  }
};

inline Operand floats(std::vector<float>& values, int64_t rows, int64_t cols, int64_t skip = 0) {
  return {reinterpret_cast<std::byte*>(values.data() + skip), DType::f32, 2, {rows, cols}};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace weft::test
