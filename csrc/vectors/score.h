// score: from sums to scores. A Scorer holds queries made ready once; a block of rows is scored for one or several.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "core/memory.h"
#include "vectors/rows.h"

namespace weft {

// Norms between which squares and products of float32 keep their digits; NaN is outside.
constexpr double kShortest = 1e-15, kLongest = 1e18;
inline bool has_sound_norm(double norm) { return norm >= kShortest && norm <= kLongest; }

// a.b over both norms, in double precision, so that a vector's cosine with itself is 1. Rounding may pass 1 by a little;
// that is cut off. NaN where the sums are not to be trusted.
inline float cosine_of(float dot, double norm, double other) {
  const double cosine = dot / (norm * other);
  if (!has_sound_norm(norm) || !has_sound_norm(other)) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(cosine > 1 ? 1 : cosine < -1 ? -1 : cosine);
}

class Scorer {
 public:
  // Queries of floats may have another float type than the rows; all other queries have the rows' own kind.
  // Throws Error(input) for a metric that the rows do not have, and for a query that is not finite or has no direction.
  Scorer(const VectorKernels& kernels, const Rows& queries, const Rows& rows, Metric metric);

  // Scores of rows [first, first + n) for queries [query, query + n_queries): out[q * n + row].
  struct Scratch {
    std::vector<float> squares;
    std::vector<int32_t> sums, int_squares;
  };
  void block(int64_t query, int64_t n_queries, int64_t first, int64_t n, float* out, Scratch& scratch) const;

  // Why the score of a query and a row is no number.
  [[noreturn]] void explain(int64_t query, int64_t row) const;

  const Rows& rows() const { return rows_; }
  Metric metric() const { return metric_; }
  int64_t n_queries() const { return queries_.count; }

 private:
  void check_metric() const;
  void prepare_floats();
  void prepare_ints();
  void floats(int64_t query, int64_t n_queries, int64_t first, int64_t n, float* out, Scratch& scratch) const;
  void ints(int64_t query, int64_t first, int64_t n, float* out, Scratch& scratch) const;
  void codes(int64_t query, int64_t first, int64_t n, const int32_t* sums, float* out) const;
  void cosines(int64_t query, int64_t first, int64_t n, const float* squares, float* out) const;
  bool needs_squares() const;

  const VectorKernels& kernels_;
  const Rows queries_, rows_;
  const Metric metric_;
  Memory wide_;                       // queries as float32 [count, wide_stride_], each at a cache line
  int64_t wide_stride_ = 0;           // dim, rounded up to 16
  std::vector<double> norms_;         // of queries, for cosine
  std::vector<int64_t> int_squares_;  // of plain int8 queries
};

}  // namespace weft
