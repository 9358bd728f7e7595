// matmul_parts: matmul in the matrix unit, for programs without a state (decision 0062): numbers as sums of bfloat16 parts.
//
// Meaning  weft/ops/matmul.py
// Layout   x [M, K], y [M, N] contiguous; W in panels of f32, f16 or bf16 (pack/panels.h), as matmul reads it
// Method   matmul_parts.h
// Bound    the matrix unit and the second-level cache; splitting W below 32 rows
#include "kernels/matmul_parts.h"

namespace weft::ISA {

template <class T>
constexpr int64_t kPartsOf = 3;
template <>
constexpr int64_t kPartsOf<F16> = 2;
template <>
constexpr int64_t kPartsOf<Bf16> = 1;

template <class T>
struct PackedPanels {
  static constexpr int64_t kParts = kPartsOf<T>;
  static constexpr bool kWholeSteps = false;
  const T* data;
  int64_t depth;

  // The panel after the next one is prefetched.
  WEFT_INLINE void lay(int64_t panel, int64_t k, int64_t left, int64_t turn, std::byte* out) const {
    const T* at = data + (panel * depth + k) * 16;
    const int64_t whole = smaller(turn, left / 2);
    for (int64_t i = 0; i < turn; ++i, at += 32, out += 64) {
      if (i < whole) store_parts<kParts, Order::paired>(widen(at), widen(at + 16), out);
      else store_parts<kParts, Order::paired>(2 * i < left ? widen(at) : zero(), zero(), out);
      const char* ahead = reinterpret_cast<const char*>(at + 2 * depth * 16);
      for (size_t line = 0; line < 32 * sizeof(T); line += 64) _mm_prefetch(ahead + line, _MM_HINT_T1);
    }
  }
};

template <class T>
static void multiply_parts(const Call& call, const Worker& worker) {
  const Weight& weight = *call.in[1].weight;
  const Epilogue epilogue(call);
  const Pieces pieces = pieces_for(call.in[0].rows(), weight.rows, starts_of(call, Pieces::kStarts), weight.matrices, worker);
  multiply_pieces(pieces, worker, [&](const Piece& piece, int64_t height) {
    const PackedPanels<T> w{reinterpret_cast<const T*>(matrix_of(weight, piece)), weight.cols};
    return PartsProduct{call.in[0].as<float>(), w, call.out[0].as<float>(), weight.cols, weight.rows, height, epilogue.of(piece.matrix, weight.rows)};
  });
}

KERNEL(matmul_parts) {
  const DType dtype = call.in[1].weight->dtype;
  if (dtype == DType::f32) multiply_parts<float>(call, worker);
  else if (dtype == DType::f16) multiply_parts<F16>(call, worker);
  else multiply_parts<Bf16>(call, worker);
}

}  // namespace weft::ISA
