// costs: C [n, m], given as a matrix, or computed from points tile by tile.
#pragma once
#include <string>
#include <vector>

#include "core/pool.h"
#include "transport/kernels.h"

namespace weft {

enum class CostMetric : uint8_t { squared, cosine };

constexpr double kNoWeight = -1e300;  // the logarithm of a weight of zero

// Points [count, dim], contiguous, of float32 or float64.
struct Points {
  const void* data = nullptr;
  int64_t count = 0, dim = 0;
  bool wide = false;  // float64

  const void* row(int64_t i) const {
    return static_cast<const std::byte*>(data) + static_cast<size_t>(i * dim) * (wide ? sizeof(double) : sizeof(float));
  }
};

// Scratch of one worker.
struct CostTile {
  std::vector<double> costs, other;
};

class Costs {
 public:
  static constexpr int64_t kRows = 16, kCols = 512;  // of a tile
  static constexpr int64_t kPanel = 16;              // points in a panel

  // A matrix [n, m], which the caller keeps alive.
  Costs(const TransportKernels& kernels, const double* matrix, int64_t n, int64_t m);
  // Points of one type and dimension, which the caller keeps alive. Throws Error(input) where a point is not finite or, for
  // cosine, has a norm of zero.
  Costs(const TransportKernels& kernels, const Points& rows, const Points& cols, CostMetric metric, Pool& pool);

  int64_t rows() const { return n_; }
  int64_t cols() const { return m_; }
  bool kept() const { return matrix_ != nullptr; }
  const double* matrix() const { return matrix_; }
  const TransportKernels& kernels() const { return kernels_; }

  // Costs of [first, first + n) x [col, col + m), `stride` apart: in place, or in the tile's scratch. `turned` reads C^T.
  const double* tile(bool turned, int64_t first, int64_t n, int64_t col, int64_t m, CostTile& scratch, int64_t* stride) const;

 private:
  void lay(const Points& points, std::vector<float>& panels, Pool& pool) const;
  void measure(const Points& points, const std::vector<float>& panels, std::vector<double>& norms, Pool& pool) const;
  void compute(bool turned, int64_t first, int64_t n, int64_t col, int64_t m, double* out, int64_t stride) const;

  const TransportKernels& kernels_;
  const int64_t n_, m_;
  const double* const matrix_ = nullptr;
  Points rows_, cols_;
  CostMetric metric_ = CostMetric::squared;
  std::vector<float> row_panels_, col_panels_;  // float32 points as panel_dots reads them
  std::vector<double> row_norms_, col_norms_;  // squared, or 1 / norm for cosine
};

}  // namespace weft
