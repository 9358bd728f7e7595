// turning: the channels of a head turned in pairs, by cosines and sines that are known.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

// Channel i turns with channel i + R.
WEFT_INLINE void turn_halves(float* to, const float* x, const float* cosine, const float* sine, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += 16) {
    const int64_t n = smaller(16, pairs - i);
    f32x16 a = load_n(x + i, n), b = load_n(x + pairs + i, n), c = load_n(cosine + i, n), s = load_n(sine + i, n);
    store_n(to + i, a * c - b * s, n);
    store_n(to + pairs + i, b * c + a * s, n);
  }
}

// Channel 2i turns with channel 2i + 1.
WEFT_INLINE void turn_neighbours(float* to, const float* x, const float* cosine, const float* sine, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    float a = x[2 * i], b = x[2 * i + 1];
    to[2 * i] = a * cosine[i] - b * sine[i];
    to[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

// How heads of `dim` channels turn: their first 2 `pairs`. Product and sum are rounded separately, so that every level
// gives the same bits.
struct Turning {
  int64_t dim, pairs;
  bool interleaved;

  // to may be x
  WEFT_INLINE void head(float* to, const float* x, const float* cosine, const float* sine) const {
    if (interleaved) turn_neighbours(to, x, cosine, sine, pairs);
    else turn_halves(to, x, cosine, sine, pairs);
    fill(to + 2 * pairs, dim - 2 * pairs, [&](auto at) { return at(x + 2 * pairs); });
  }
};

}  // namespace weft::ISA
