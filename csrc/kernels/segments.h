// segments: i32 [B+1], where each sequence of a ragged batch starts in the flat list of tokens; the last is the end.
#pragma once
#include "core/kernel.h"

namespace weft::ISA {

// The sequence that holds `token`: the last one that starts at or before it.
WEFT_INLINE int64_t segment_of(const int32_t* segments, int64_t batch, int64_t token) {
  int64_t low = 0, high = batch;  // segments[low] <= token < segments[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (segments[middle] <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace weft::ISA
