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
  lay(rows, row_panels_, pool);
  lay(cols, col_panels_, pool);
  measure(rows, row_panels_, row_norms_, pool);
  measure(cols, col_panels_, col_norms_, pool);
}

void Costs::lay(const Points& points, std::vector<float>& panels, Pool& pool) const {
  if (points.wide) return;
  const int64_t count = (points.count + kPanel - 1) / kPanel;
  panels.resize(static_cast<size_t>(count * points.dim * kPanel));
  deal_tasks(count, points.count * points.dim, pool, [&](int, int64_t task) {
    float* to = panels.data() + task * kPanel * points.dim;
    for (int64_t lane = 0; lane < std::min(kPanel, points.count - task * kPanel); ++lane) {
      const auto* from = static_cast<const float*>(points.row(task * kPanel + lane));
      for (int64_t k = 0; k < points.dim; ++k) to[k * kPanel + lane] = from[k];
    }
  });
}

void Costs::measure(const Points& points, const std::vector<float>& panels, std::vector<double>& norms, Pool& pool) const {
  norms.resize(static_cast<size_t>(points.count));
  std::atomic<int64_t> wrong{points.count};  // the first row that is not finite, or has no direction
  constexpr int64_t each = 256;
  deal_tasks((points.count + each - 1) / each, points.count * points.dim, pool, [&](int, int64_t task) {
    for (int64_t i = task * each; i < std::min(points.count, (task + 1) * each); ++i) {
      double square = 0;
      if (points.wide)
        kernels_.dots_f64(static_cast<const double*>(points.row(i)), 1, static_cast<const double*>(points.row(i)), 1, points.dim, &square, 1);
      else {  // in the order of the products, so that a point has no distance from itself
        double squares[kPanel];
        kernels_.panel_dots(static_cast<const float*>(points.row(i)), 1, panels.data() + i / kPanel * kPanel * points.dim, kPanel, points.dim, squares, kPanel);
        square = squares[i % kPanel];
      }
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
    kernels_.panel_dots(static_cast<const float*>(a.row(first)), n, (turned ? row_panels_ : col_panels_).data() + col * a.dim, m, a.dim, out, stride);
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

}  // namespace weft
