// matmul_a8: rows of int8 activations, as quantise_rows writes and matmul_q reads them.
#pragma once
#include <cstdint>

namespace weft {

template <int block>
struct A8 {
  float d;                  // value = d * q
  int16_t sum[block / 16];  // of 16 neighbouring q
  int8_t q[block];
};
static_assert(sizeof(A8<32>) == 40 && sizeof(A8<256>) == 292);

}  // namespace weft
