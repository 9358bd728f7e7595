// embedding: y[t] = row ids[t] of the table.
//
// Meaning  weft/ops/gather.py
// Layout   ids [T] int32; table rows of any type or panels of any packed type; y [T, D]
// Method   one row per task, dequantised by the scalar code that defines each type
// Bound    latency of the rows' cache misses; an id outside the table gives a row of zeros
#include "core/weight.h"
#include "pack/panels.h"
#include "simd/simd.h"

namespace weft::ISA {

KERNEL(embedding) {
  const Weight& table = *call.in[1].weight;
  const int32_t* ids = call.in[0].as<int32_t>();
  const int64_t tokens = call.in[0].size();
  for (int64_t token; (token = worker.next(tokens)) < tokens;) {
    float* row = call.out[0].as<float>() + token * table.cols;
    if (ids[token] >= 0 && ids[token] < table.rows) read_row(table, ids[token], row);
    else std::memset(row, 0, static_cast<size_t>(table.cols) * sizeof(float));
  }
}

}  // namespace weft::ISA
