// rows: a block of vectors in memory that the caller owns.
#pragma once
#include <cstdint>

#include "vectors/kernels.h"

namespace weft {

constexpr int64_t kMaxDim = 65536;  // int32 sums hold that many products of bytes

enum class Metric : uint8_t { dot, cosine, squared, euclidean, manhattan, hamming };

inline bool larger_is_nearer(Metric metric) { return metric == Metric::dot || metric == Metric::cosine; }

// Codes have what their scores need beside them, one number per row: int8 codes `scales` and `norms`; 4-bit codes also
// `offsets` and `sums`. Rows of floats may have `norms`; plain int8 has none of them.
struct Rows {
  const std::byte* data = nullptr;
  int64_t count = 0, dim = 0;
  int64_t stride = 0;  // bytes from row to row
  Element element = Element::f32;
  const float* norms = nullptr;    // of the vectors that were coded
  const float* scales = nullptr;   // the factor that values were multiplied by
  const float* offsets = nullptr;  // 4 bits: the number that was added before
  const int32_t* sums = nullptr;   // 4 bits: of the codes of a row

  int64_t size() const {  // of a row, as the kernels count
    if (element == Element::u4) return (dim + 1) / 2;
    return element == Element::bits ? (dim + 7) / 8 : dim;
  }
  const std::byte* row(int64_t at) const { return data + at * stride; }
  bool is_float() const { return static_cast<int>(element) < kFloatTypes; }
};

}  // namespace weft
