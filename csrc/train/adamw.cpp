#include "train/adamw.h"

#include <array>
#include <cmath>

namespace weft {

// Compiled without errno, so that the compiler makes vectors of the roots.
void adamw(const AdamStep& step, const float* __restrict gradient, float* __restrict value, float* __restrict first,
           float* __restrict second, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float change = gradient[i];
    const float mean = first[i] * step.beta1 + step.rest1 * change;
    const float square = second[i] * step.beta2 + step.rest2 * change * change;
    first[i] = mean;
    second[i] = square;
    value[i] = value[i] * step.kept - step.rate * (mean / (std::sqrt(square) / step.root + step.eps));
  }
}

double sum_of_squares(const float* values, int64_t n) {
  std::array<double, 16> sums{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int lane = 0; lane < 16; ++lane) sums[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
  for (; i < n; ++i) sums[i % 16] += static_cast<double>(values[i]) * values[i];
  for (int half = 8; half; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

}  // namespace weft
