// kernels: what a pass does with a tile of costs, a table per instruction-set level. The code behind it is csrc/transport/isa.
#pragma once
#include "core/kernel.h"

namespace weft {

// The largest exponent of a row so far, and the sum of exp(exponent - largest).
struct LogSum {
  double largest, sum;
};

struct TransportKernels {
  // out[i * out_stride + j] = a_i . b_j of rows that lie contiguous, `size` numbers each
  void (*dots_f32)(const float* a, int64_t n, const float* b, int64_t m, int64_t size, double* out, int64_t out_stride);
  void (*dots_f64)(const double* a, int64_t n, const double* b, int64_t m, int64_t size, double* out, int64_t out_stride);
  // The same of float32 points b that lie in panels of 16: [m / 16 rounded up, size, 16]. Every product has the same bits whichever
  // of its points is in a panel.
  void (*panel_dots)(const float* a, int64_t n, const float* panels, int64_t m, int64_t size, double* out, int64_t out_stride);
  // Adds the exponents h_j - cost_j * scale of one tile of a row. `exponents` is scratch for m numbers.
  LogSum (*add_row)(LogSum so_far, const double* cost, const double* h, double scale, int64_t m, double* exponents);
  // The same for `m` columns at once, over `n` rows of costs that lie `stride` apart.
  void (*add_columns)(LogSum* so_far, const double* cost, int64_t stride, const double* h, double scale, int64_t n, int64_t m);
  // plan_j = exp(u + v_j - cost_j * scale), and its sum and that of plan_j * cost_j
  void (*plan_row)(const double* cost, double u, const double* v, double scale, int64_t m, double* plan, double* mass, double* spent);
  // out_j = q_j - cost_j * scale, and the largest of them
  double (*exponents_row)(const double* cost, const double* q, double scale, int64_t m, double* out);
  // row_j = exp(row_j - top)
  void (*exp_row)(double* row, double top, int64_t m);
  // out_i = sum_j k_ij w_j of n rows that lie `stride` apart
  void (*weigh_rows)(const double* k, int64_t stride, int64_t n, const double* w, int64_t m, double* out);
  // to_j += sum_i factors_i k_ij, row after row
  void (*add_rows)(const double* k, int64_t stride, int64_t n, const double* factors, int64_t m, double* to);
  // to += factor * from
  void (*add_scaled)(double factor, const double* from, double* to, int64_t m);
};

struct Level;
// Those of the level, or of the nearest lower one that has any.
const TransportKernels& transport_kernels(const Level& level);

const TransportKernels& active_transport();  // the best level of this machine until another is set
void set_active_transport(const TransportKernels& kernels);

}  // namespace weft
