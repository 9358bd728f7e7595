// narrow_wide: blocks of a product with vectors of float32, where a level has no faster arithmetic for them. `narrowed`: numbers
// are rounded to bfloat16 first; float32 holds them and their products exactly, so that every level has the same bits.
//
// Per 32 rows of B two chains, over the even and over the odd ones, are added up and then added to the element, as an
// instruction of the matrix unit does it.
#pragma once
#include "kernels/narrow_blocks.h"
#include "kernels/round_bf16.h"

namespace weft::ISA {

template <bool narrowed>
struct WideForm {
  static constexpr int64_t kBytes = (kNarrowDepth * kNarrowColumns + kNarrowRows * kNarrowDepth) * 4;

  float *strip, *row;  // [strips][depth][16], [rows][depth]

  explicit WideForm(std::byte* scratch)
      : strip(reinterpret_cast<float*>(scratch)), row(strip + kNarrowDepth * kNarrowColumns) {}

  static WEFT_INLINE f32x16 rounded(f32x16 value) {
    if constexpr (!narrowed) return value;
    uint16_t narrow[16];
    store_rounded(narrow, value);
    return load_bf16(narrow);
  }

  WEFT_INLINE void put(int64_t index, int64_t at, const float* from, int64_t stride, int64_t deep, int64_t columns) {
    float* to = strip + (index * kNarrowDepth + at) * 16;
    for (int64_t d = 0; d < deep; ++d) store(to + d * 16, rounded(load_n(from + d * stride, columns)));
  }

  WEFT_INLINE void put_row(int64_t index, const float* x, int64_t deep) {
    float* to = row + index * kNarrowDepth;
    for (int64_t k = 0; k < deep; k += 16) store(to + k, rounded(load_n(x + k, smaller(16, deep - k))));
  }

  void multiply(int64_t rows, int64_t deep, float* y, int64_t y_stride, int64_t wide, bool more) const {
    for (int64_t s = 0; s * 16 < wide; ++s)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t columns = smaller(16, wide - s * 16);
        const float *x = row + r * kNarrowDepth, *w = strip + s * kNarrowDepth * 16;
        float* to = y + r * y_stride + s * 16;
        f32x16 total = more ? load_n(to, columns) : zero();
        for (int64_t d = 0; d < deep; d += kNarrowStep) {
          f32x16 even = zero(), odd = zero();
          const int64_t end = smaller(deep, d + kNarrowStep);
          for (int64_t k = d; k < end; k += 2) {
            even = fma(splat(x[k]), load(w + k * 16), even);
            if (k + 1 < end) odd = fma(splat(x[k + 1]), load(w + (k + 1) * 16), odd);
          }
          total = total + (even + odd);
        }
        store_n(to, total, columns);
      }
  }
};

}  // namespace weft::ISA
