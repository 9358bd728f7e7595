// sweep: the log sums of all rows and, with what they give, those of all columns, in one read of a cost.
//
// A row's exponentials are taken relative to its largest exponent, K_ij = exp(q_j - C_ij * scale - top_i). Its sum needs them, and
// so do the sums of columns, once the row's own potential is known: one product and one exponential per pair and iteration. A
// kernel that is held across iterations spares those too, as long as potentials stay near q.
#pragma once
#include "transport/costs.h"

namespace weft {

// K of all rows, and what they are relative to: memory of the caller's.
struct HeldKernel {
  double* values;  // [n, m]
  double* tops;    // [n]
};

struct Sweep {
  const double* q;  // [m] what exponents start from: finite, also where a weight is zero
  const double* w;  // [m] exp(h_j - q_j) of the h whose log sums are wanted
  double scale;
  const double* log_a;  // [n] the row's u_i is log_a_i - part * its log sum
  double part;
  const double* u;  // [n] given instead of these, or null
  double* sums;     // [n] log sum_j exp(h_j - C_ij * scale)
  double* columns;  // [groups, m] parts of sum_i exp(u_i - C_ij * scale) * exp(q_j), added to; null: rows alone
};

constexpr double kSmallestSum = 1e-150;  // of a row relative to its largest exponent: below it, underflow might show

// Rows are cut into this many groups, each of which sums its columns apart: however many threads there are, sums have one order.
int64_t sweep_groups(int64_t rows);
// Blocks of rows in the longest group: the steps of a sweep.
int64_t sweep_steps(int64_t rows);

// Steps [first, first + count) of a sweep: those blocks of every group. `held` may hold nothing; `reuse` reads what an earlier sweep
// left in it. Returns whether every sum is large enough to be trusted.
bool sweep(const Costs& costs, const Sweep& task, int64_t first, int64_t count, HeldKernel held, bool reuse, Pool& pool);

}  // namespace weft
