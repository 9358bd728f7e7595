// kernels: sums over a query and rows, a table of them per instruction-set level. The code behind it is csrc/vectors/isa.
#pragma once
#include "core/kernel.h"

namespace weft {

enum class Element : uint8_t { f32, f16, bf16, i8, u4, bits };
constexpr int kFloatTypes = 3;  // the first three

// One query against n rows that lie `stride` bytes apart. `size` counts elements; of u4 and bits, bytes.
using FloatSum = void (*)(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, float* out);
using IntSum = void (*)(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out);

// The sums of every metric: a.b, |a-b|^2, |a-b|_1 of float rows with a query of float32 or, in `pair`, of the rows' type.
struct FloatSums {
  FloatSum dot, squared, absolute;
};

struct VectorKernels {
  FloatSums scan[kFloatTypes];
  FloatSums pair[kFloatTypes];
  FloatSum squares[kFloatTypes];  // |b|^2; the query is not read
  // a.b to `out` and |b|^2 to `squares` in one pass over the row
  void (*dot_squares[kFloatTypes])(const float* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size,
                                   float* out, float* squares);
  // a.b, |a|^2, |b|^2 of one pair of the same type
  void (*three[kFloatTypes])(const void* a, const void* b, int64_t size, float* out);
  // a.b of many queries (`query_stride` floats apart); out[q * out_stride + row]
  void (*dot_many[kFloatTypes])(const float* queries, int64_t query_stride, int64_t n_queries, const std::byte* rows,
                                int64_t stride, int64_t n, int64_t size, float* out, int64_t out_stride);
  void (*widen[kFloatTypes])(const void* from, float* to, int64_t size);
  void (*divide)(const float* from, float by, float* to, int64_t size);

  IntSum i8_dot, i8_absolute, i8_squares;  // i8_squares reads no query
  IntSum u4_dot;                           // of two codes a byte
  IntSum hamming;                          // bits that differ
};

struct Level;
// Those of the level, or of the nearest lower one that has any.
const VectorKernels& vector_kernels(const Level& level);

}  // namespace weft
