// take_rows: y[l] = x[rows[l]].
//
// Meaning  weft/ops/gather.py
// Layout   x [T, D], y [L, D] contiguous; rows i32 [L]; y is not x
// Method   copies
// Bound    memory, 8 bytes per element
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(take_rows) {
  const int64_t count = call.out[0].rows(), dim = call.out[0].cols();
  const float* x = call.in[0].as<float>();
  const int32_t* rows = call.in[1].as<int32_t>();
  float* y = call.out[0].as<float>();
  deal_rows(worker, count, dim, [&](int64_t row) {
    std::memcpy(y + row * dim, x + rows[row] * dim, static_cast<size_t>(dim) * sizeof(float));
  });
}

}  // namespace weft::ISA
