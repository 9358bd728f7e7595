// product_back_parts: product_back in the matrix unit, for matrices of 128 rows and columns and more (decision 0062).
//
// Meaning  weft/ops/training.py
// Layout   grad [rows, N], M [N, K] or [E, N, K], y [rows, K], contiguous; starts i32 [E+1] or absent
// Method   matmul_parts.h, blocks of rows of M instead of columns
// Bound    the matrix unit and the second-level cache
#include "kernels/matmul_parts.h"

namespace weft::ISA {

// The outputs are the columns of a matrix.
struct ColumnsOfMatrix {
  static constexpr int64_t kParts = 3;
  static constexpr bool kWholeSteps = false;
  const float* data;
  int64_t outputs;

  WEFT_INLINE void lay(int64_t panel, int64_t k, int64_t left, int64_t turn, std::byte* out) const {
    const float* at = data + k * outputs + panel * 16;
    const int64_t there = outputs - panel * 16;
    for (int64_t i = 0; i < turn; ++i, at += 2 * outputs, left -= 2, out += 64) {
      const f32x16 first = left > 0 ? load_n(at, there) : zero(), second = left > 1 ? load_n(at + outputs, there) : zero();
      store_parts<kParts, Order::paired>(first, second, out);
      if (there <= 32) continue;
      _mm_prefetch(reinterpret_cast<const char*>(at + 32), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(at + outputs + 32), _MM_HINT_T1);
    }
  }
};

KERNEL(product_back_parts) {
  const int64_t depth = call.in[0].cols(), outputs = call.in[1].cols();
  const int32_t* starts = starts_of(call, 2);
  const Pieces pieces = pieces_for(call.in[0].rows(), outputs, starts, starts ? call.in[1].dim[0] : 1, worker);
  multiply_pieces(pieces, worker, [&](const Piece& piece, int64_t height) {
    const ColumnsOfMatrix w{call.in[1].as<float>() + piece.matrix * depth * outputs, outputs};
    return PartsProduct{call.in[0].as<float>(), w, call.out[0].as<float>(), depth, outputs, height, Epilogue{}};
  });
}

}  // namespace weft::ISA
