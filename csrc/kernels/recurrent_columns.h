// recurrent_columns: columns of a head's recurrent state [rows, columns], which need nothing of each other: a task of
// delta_rule and mamba2 holds up to 32 of them in the first cache and goes from token to token.
#pragma once
#include "core/state.h"
#include "simd/simd.h"

namespace weft::ISA {

namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTaskColumns = 32;  // two vectors: sums enough to hide how long an addition takes

// The columns of a task in the slots; a source of null is zeros, a target of null keeps nothing.
struct SlotColumns {
  const float* source;
  float* target;
  int64_t rows, stride, count;

  // Of a state [heads, rows, columns]: those of `head` from `first` on, for a sequence with these slots.
  SlotColumns(const SlotState* state, const int32_t* slots, int64_t head, int64_t rows, int64_t columns, int64_t first)
      : rows(rows), stride(columns), count(columns - first < kTaskColumns ? columns - first : kTaskColumns) {
    const int64_t place = head * rows * columns + first;
    source = !state || slots[0] < 0 ? nullptr : state->slot(slots[0]) + place;
    target = state ? state->slot(slots[1]) + place : nullptr;
  }

  // For a sequence without tokens in the step.
  void copy() const {
    for (int64_t i = 0; target && i < rows; ++i)
      for (int64_t j = 0; j < count; j += kLanes)
        store_n(target + i * stride + j, source ? load_n(source + i * stride + j, count - j) : zero(), count - j);
  }
};

// Vectors of `count` columns, kCount of them: all but the last are whole.
template <int kCount>
struct Vectors {
  int64_t last;

  WEFT_INLINE explicit Vectors(int64_t count) : last(count - (kCount - 1) * kLanes) {}
  WEFT_INLINE f32x16 get(const float* p, int j) const {
    return j == kCount - 1 ? load_n(p + j * kLanes, last) : load(p + j * kLanes);
  }
  WEFT_INLINE void put(float* p, int j, f32x16 a) const {
    j == kCount - 1 ? store_n(p + j * kLanes, a, last) : store(p + j * kLanes, a);
  }
};

// Rows of one head in tokens that follow each other lie too far apart for the hardware's prefetcher.
WEFT_INLINE void prefetch(const float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) __builtin_prefetch(p + i);
}

}  // namespace

}  // namespace weft::ISA
