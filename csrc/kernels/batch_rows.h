// batch_rows: the rows of each sequence among those of an array: all its tokens, or those that `rows` names.
#pragma once
#include "kernels/rows.h"
#include "kernels/segments.h"

namespace weft::ISA {

// Calls f(first, count) for the rows of each sequence, in the order of the sequences. `tokens` is null where row m is token m;
// else it has the token of each row, and the rows of a sequence follow each other.
template <class F>
WEFT_INLINE void each_sequence(const int32_t* segments, int64_t batch, const int32_t* tokens, int64_t rows, F f) {
  if (!tokens) {
    for (int64_t b = 0; b < batch; ++b) f(segments[b], segments[b + 1] - segments[b]);
    return;
  }
  for (int64_t first = 0, next; first < rows; first = next) {
    const int64_t owner = segment_of(segments, batch, tokens[first]);
    next = first + 1;
    while (next < rows && segment_of(segments, batch, tokens[next]) == owner) ++next;
    f(first, next - first);
  }
}

}  // namespace weft::ISA
