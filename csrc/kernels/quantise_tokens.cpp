// quantise_tokens: rows of floats to rows of int8 with one scale each, and one element that may be larger.
//
// Meaning  weft/ops/quant.py
// Layout   x [rows, K] contiguous, K a multiple of 64; codes int8 [rows, K]; headers float32 [rows, 3] (token_codes.h);
//          a weight in quads (pack/quads.h), where there is one, has factors for the columns
// Method   a row at a time: factors, then the two largest magnitudes, then codes
// Bound    memory, 5 bytes per element
#include "core/weight.h"
#include "kernels/rows.h"
#include "kernels/token_codes.h"
#include "pack/quads.h"

namespace weft::ISA {

KERNEL(quantise_tokens) {
  const int64_t rows = call.in[0].rows(), depth = call.in[0].cols();
  const Weight* weight = call.in[1].weight;  // of the product that reads the rows
  if (weight && weight->layout != Layout::quads) __builtin_trap();  // the binding makes no other for this op
  const float* factors = nullptr;
  if (weight) factors = reinterpret_cast<const float*>(Quads{weight->data, weight->rows, depth}.factors());
  float* equal = reinterpret_cast<float*>(worker.scratch);
  deal_rows(worker, rows, depth, [&](int64_t row) {
    const float* x = call.in[0].as<float>() + row * depth;
    if (factors) {
      for (int64_t k = 0; k < depth; k += 16) store(equal + k, load(x + k) * load(factors + k));
      x = equal;
    }
    write_codes(x, depth, peaks_of(x, depth), call.out[0].as<int8_t>() + row * depth,
                call.out[1].as<float>() + row * kHeader);
  });
}

}  // namespace weft::ISA
