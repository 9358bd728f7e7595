// adamw: a step of AdamW over some numbers, and the sum of their squares.
#pragma once
#include <cstdint>

namespace weft {

// What all numbers of a step share. The corrections are those of both means for having begun at zero.
struct AdamStep {
  float beta1, rest1;   // of the mean of gradients, and one less it
  float beta2, rest2;   // of the mean of their squares
  float kept;           // what a decay leaves of the weight
  float root;           // square root of the correction of the squares
  float eps;
  float rate;           // over the correction of the mean
};

// Changes n weights and both of their means in place.
void adamw(const AdamStep& step, const float* gradient, float* value, float* first, float* second, int64_t n);

// The sum of n squares, exact products added in sixteen sums.
double sum_of_squares(const float* values, int64_t n);

}  // namespace weft
