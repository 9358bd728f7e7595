// product_parts: product in the matrix unit, for matrices of 128 rows and columns and more (decision 0062).
//
// Meaning  weft/ops/training.py
// Layout   x [rows, K], M [N, K] or [E, N, K], y [rows, N], contiguous; starts i32 [E+1] or absent
// Method   matmul_parts.h; 16 rows of M and 32 columns are split and turned around at a time
// Bound    the matrix unit and the second-level cache
#include "kernels/matmul_parts.h"
#include "simd/transpose.h"

namespace weft::ISA {

// Tiles [part][16][16] of units of 32 bits, turned around.
static void turn_tiles(const std::byte* from, std::byte* to) {
  for (int64_t part = 0; part < 3; ++part, from += kTile, to += kTile) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(from + i * 64);
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, rows[i]);
  }
}

// The outputs are the rows of a matrix.
struct RowsOfMatrix {
  static constexpr int64_t kParts = 3;
  static constexpr bool kWholeSteps = true;
  const float* data;
  int64_t depth, outputs;

  void lay(int64_t panel, int64_t k, int64_t left, int64_t, std::byte* out) const {
    alignas(64) std::byte apart[kParts * kTile];
    const float* at = data + panel * 16 * depth + k;
    for (int64_t r = 0; r < 16; ++r, at += depth) {
      const int64_t count = panel * 16 + r < outputs ? left : 0;
      const f32x16 first = count > 0 ? load_n(at, count) : zero(), second = count > 16 ? load_n(at + 16, count - 16) : zero();
      store_parts<kParts, Order::apart>(first, second, apart + r * 64);
      for (int64_t half : {0, 16}) _mm_prefetch(reinterpret_cast<const char*>(at + 32 * depth + half), _MM_HINT_T1);
    }
    turn_tiles(apart, out);
  }
};

KERNEL(product_parts) {
  const int64_t depth = call.in[0].cols(), outputs = call.out[0].cols();
  const int32_t* starts = starts_of(call, 2);
  const Pieces pieces = pieces_for(call.in[0].rows(), outputs, starts, starts ? call.in[1].dim[0] : 1, worker);
  multiply_pieces(pieces, worker, [&](const Piece& piece, int64_t height) {
    const RowsOfMatrix w{call.in[1].as<float>() + piece.matrix * outputs * depth, depth, outputs};
    return PartsProduct{call.in[0].as<float>(), w, call.out[0].as<float>(), depth, outputs, height, Epilogue{}};
  });
}

}  // namespace weft::ISA
