#include "transport/costs.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "transport/deal.h"

namespace weft {

Costs::Costs(const TransportKernels& kernels, const double* matrix, int64_t n, int64_t m)
    : kernels_(kernels), n_(n), m_(m), matrix_(matrix) {}

Costs::Costs(const TransportKernels& kernels, const Points& rows, const Points& cols, CostMetric metric, Pool& pool)
    : kernels_(kernels), n_(rows.count), m_(cols.count), rows_(rows), cols_(cols), metric_(metric) {
  measure(rows, row_norms_, pool);
  measure(cols, col_norms_, pool);
}

void Costs::measure(const Points& points, std::vector<double>& norms, Pool& pool) const {
  norms.resize(static_cast<size_t>(points.count));
  std::atomic<int64_t> wrong{points.count};  // the first row that is not finite, or has no direction
  constexpr int64_t each = 256;
  deal_tasks((points.count + each - 1) / each, points.count * points.dim, pool, [&](int, int64_t task) {
    for (int64_t i = task * each; i < std::min(points.count, (task + 1) * each); ++i) {
      double square = 0;
      if (points.wide)
        kernels_.dots_f64(static_cast<const double*>(points.row(i)), 1, static_cast<const double*>(points.row(i)), 1, points.dim, &square, 1);
      else
        kernels_.dots_f32(static_cast<const float*>(points.row(i)), 1, static_cast<const float*>(points.row(i)), 1, points.dim, &square, 1);
      const bool cosine = metric_ == CostMetric::cosine;
      norms[static_cast<size_t>(i)] = cosine ? 1 / std::sqrt(square) : square;
      if (!std::isfinite(norms[static_cast<size_t>(i)]))
        for (int64_t seen = wrong; i < seen && !wrong.compare_exchange_weak(seen, i);) {
        }
    }
  });
  if (wrong < points.count)
    fail(ErrorKind::input, "transport", "point " + std::to_string(wrong.load()) + " holds NaN, infinity or too large a number" +
                                            (metric_ == CostMetric::cosine ? ", or has a norm of zero" : ""));
}

void Costs::compute(bool turned, int64_t first, int64_t n, int64_t col, int64_t m, double* out, int64_t stride) const {
  const Points &a = turned ? cols_ : rows_, &b = turned ? rows_ : cols_;
  const double* an = (turned ? col_norms_ : row_norms_).data() + first;
  const double* bn = (turned ? row_norms_ : col_norms_).data() + col;
  if (a.wide)
    kernels_.dots_f64(static_cast<const double*>(a.row(first)), n, static_cast<const double*>(b.row(col)), m, a.dim, out, stride);
  else
    kernels_.dots_f32(static_cast<const float*>(a.row(first)), n, static_cast<const float*>(b.row(col)), m, a.dim, out, stride);
  for (int64_t i = 0; i < n; ++i) {
    double* row = out + i * stride;
    if (metric_ == CostMetric::cosine)
      for (int64_t j = 0; j < m; ++j) row[j] = std::min(2.0, std::max(0.0, 1 - row[j] * (an[i] * bn[j])));
    else
      for (int64_t j = 0; j < m; ++j) row[j] = std::max(0.0, (an[i] + bn[j]) - 2 * row[j]);
  }
}

const double* Costs::tile(bool turned, int64_t first, int64_t n, int64_t col, int64_t m, CostTile& scratch, int64_t* stride) const {
  if (matrix_ && !turned) {
    *stride = m_;
    return matrix_ + first * m_ + col;
  }
  scratch.costs.resize(static_cast<size_t>(kRows * kCols));
  *stride = kCols;
  double* out = scratch.costs.data();
  if (!matrix_)
    compute(turned, first, n, col, m, out, kCols);
  else  // rows of C^T are columns of C
    for (int64_t j = 0; j < m; ++j)
      for (int64_t i = 0; i < n; ++i) out[i * kCols + j] = matrix_[(col + j) * m_ + first + i];
  return out;
}

void Costs::keep(int64_t first, int64_t count, Pool& pool) {
  if (matrix_) return;
  kept_.resize(static_cast<size_t>(n_ * m_));
  const int64_t last = std::min(n_, first + count), tasks = (last - first + kRows - 1) / kRows;
  deal_tasks(tasks, (last - first) * m_ * 8, pool, [&](int, int64_t task) {
    const int64_t row = first + task * kRows, n = std::min(kRows, last - row);
    for (int64_t col = 0; col < m_; col += kCols) compute(false, row, n, col, std::min(kCols, m_ - col), kept_.data() + row * m_ + col, m_);
  });
  if (last == n_) matrix_ = kept_.data();
}

}  // namespace weft
