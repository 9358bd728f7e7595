// rope: the first 2R channels of every head turned by the token's position times a frequency per channel pair.
//
// Meaning  weft/ops/rope.py
// Layout   x, y [T, H, D] contiguous; positions i32 [T]; inv_freq f32 [R], 2R <= D; y may be x
// Method   per token one table of R cosines and sines, shared by its heads; product and sum rounded separately, so that
//          every level gives the same bits
// Bound    memory, 8 bytes per element
#include "kernels/rows.h"
#include "kernels/sine.h"

namespace weft::ISA {

// Channel i turns with channel i + R.
static void turn_halves(float* to, const float* x, const float* cosine, const float* sine, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += 16) {
    const int64_t n = smaller(16, pairs - i);
    f32x16 a = load_n(x + i, n), b = load_n(x + pairs + i, n), c = load_n(cosine + i, n), s = load_n(sine + i, n);
    store_n(to + i, a * c - b * s, n);
    store_n(to + pairs + i, b * c + a * s, n);
  }
}

// Channel 2i turns with channel 2i + 1.
static void turn_neighbours(float* to, const float* x, const float* cosine, const float* sine, int64_t pairs) {
  for (int64_t i = 0; i < pairs; ++i) {
    float a = x[2 * i], b = x[2 * i + 1];
    to[2 * i] = a * cosine[i] - b * sine[i];
    to[2 * i + 1] = b * cosine[i] + a * sine[i];
  }
}

KERNEL(rope) {
  const int64_t tokens = call.in[0].dim[0], heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const int64_t pairs = call.in[2].cols();
  const float *x = call.in[0].as<float>(), *inv_freq = call.in[2].as<float>();
  const int32_t* positions = call.in[1].as<int32_t>();
  float* y = call.out[0].as<float>();
  const bool interleaved = call.flag("interleaved");
  const float scale = static_cast<float>(call.number("scale"));
  float *cosine = reinterpret_cast<float*>(worker.scratch), *sine = cosine + pairs;
  deal_rows(worker, tokens, heads * dim, [&](int64_t token) {
    cosines_and_sines(static_cast<float>(positions[token]), inv_freq, pairs, scale, cosine, sine);
    for (int64_t head = 0; head < heads; ++head) {
      const float* from = x + (token * heads + head) * dim;
      float* to = y + (token * heads + head) * dim;
      (interleaved ? turn_neighbours : turn_halves)(to, from, cosine, sine, pairs);
      fill(to + 2 * pairs, dim - 2 * pairs, [&](auto at) { return at(from + 2 * pairs); });
    }
  });
}

}  // namespace weft::ISA
