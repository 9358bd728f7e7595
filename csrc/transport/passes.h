// passes: what an iteration needs of a cost, in one read of it. Rows are those of C, or of C^T where `turned`; every pass takes a
// range of rows, so that a caller may stop between two.
#pragma once
#include "transport/costs.h"

namespace weft {

struct Range {
  int64_t first, count;
};

// out_i = log sum_j exp(h_j - C_ij * scale); kNoWeight where every h_j is. out and the range count rows.
void log_sums(const Costs& costs, bool turned, Range range, const double* h, double scale, double* out, Pool& pool);

// With the plan P_ij = exp(u_i + v_j - C_ij * scale): sums over j of P_ij and of P_ij C_ij.
void plan_sums(const Costs& costs, bool turned, Range range, const double* u, const double* v, double scale, double* mass,
               double* spent, Pool& pool);

// P x, with x [m, width]; out [range.count, width].
void plan_product(const Costs& costs, bool turned, Range range, const double* u, const double* v, double scale, const double* x,
                  int64_t width, double* out, Pool& pool);

// Rows of P; out [range.count, m].
void plan_rows(const Costs& costs, bool turned, Range range, const double* u, const double* v, double scale, double* out, Pool& pool);

// Rows of C; out [range.count, m].
void cost_rows(const Costs& costs, bool turned, Range range, double* out, Pool& pool);

// a_i . b_j of all pairs of points; out [a.count, b.count].
void point_products(const TransportKernels& kernels, const Points& a, const Points& b, double* out, Pool& pool);

}  // namespace weft
