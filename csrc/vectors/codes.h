// codes: float32 rows as int8, 4-bit and binary codes. Compiled once, for the baseline: the same codes everywhere.
#pragma once
#include "core/pool.h"
#include "vectors/rows.h"

namespace weft {

// Where the codes of `count` rows go; rows.h says which of these a type of code has. `codes` rows are packed.
struct CodesOut {
  std::byte* codes;
  float* norms;
  float* scales = nullptr;
  float* offsets = nullptr;
  int32_t* sums = nullptr;
};

// x [count, dim], `stride` bytes apart, to codes of `element` (i8, u4, bits); bits are set from `threshold` on.
// Throws Error(input) naming the first row that is not finite.
void encode(Element element, const std::byte* x, int64_t count, int64_t dim, int64_t stride, float threshold,
            const CodesOut& out, Pool& pool);

}  // namespace weft
