// binary: out = f(x, y) element by element; y has the shape of x, or is one row that goes with every row of x.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

template <class F>
WEFT_INLINE void binary(const Call& call, const Worker& worker, F f) {
  const float *x = call.in[0].as<float>(), *y = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  if (call.in[1].size() == rows * dim) {
    deal(worker, rows * dim, kGrain, [&](int64_t first, int64_t count) {
      fill(out + first, count, [&](auto at) { return f(at(x + first), at(y + first)); });
    });
  } else {
    deal_rows(worker, rows, dim, [&](int64_t row) {
      fill(out + row * dim, dim, [&](auto at) { return f(at(x + row * dim), at(y)); });
    });
  }
}

}  // namespace weft::ISA
