// lora_embedding: rows of an embedding table, changed by the adapter of their sequence.
//
// Meaning  weft/ops/matmul.py
// Layout   y and y' [T, D] contiguous, y' may be y; ids i32 [T]; table of [D, V]: down and up in panels [panel][k][16]
// Method   as lora with x one-hot at the token's id: down x is a look-up, and so is up x without a down. A task is
//          a row
// Bound    memory, the token's entries and one pass over up
#include "kernels/lora_parts.h"

namespace weft::ISA {

template <class T>
static void adapt_token(const AdapterPart& part, const Finish& finish, int64_t row, int64_t id, float* inner) {
  const int64_t panels = parts(finish.columns, 16);
  const T* up = reinterpret_cast<const T*>(part.up->data);
  if (!part.down) {
    for (int64_t p = 0; p < panels; ++p) finish(row, p, widen(up + (p * part.up->cols + id) * 16));
    return;
  }
  const T* down = reinterpret_cast<const T*>(part.down->data);
  const int64_t rank = part.down->rows;
  for (int64_t at = 0; at < rank; at += 16)
    store(inner + at, widen(down + (at * part.down->cols) + id * 16) * load_n(part.scale + at, smaller(16, rank - at)));
  for (int64_t p = 0; p < panels; ++p)
    tile<1, 1, 1>(Rows{inner, rank, rank}, up + p * rank * 16,
                  [&](int, int, f32x16 sum) __attribute__((always_inline)) { finish(row, p, sum); });
}

KERNEL(lora_embedding) {
  const Operand &y = call.in[0], &ids = call.in[1], &out = call.out[0];
  const AdapterTable& table = *call.in[2].table;
  const Owners owner{call.in[3], call.in[4], {}};
  float* inner = reinterpret_cast<float*>(worker.scratch);
  for (int64_t row; (row = worker.next(y.rows())) < y.rows();) {
    const AdapterPart& part = table.part(owner(row));
    const int64_t id = ids.as<int32_t>()[row];
    const Finish finish{part, y.as<float>(), out.as<float>(), y.cols()};
    if (!part.present() || id < 0 || id >= table.cols()) keep_row(y, out, row, 0, y.cols());
    else if (!part.up) for (int64_t p = 0; p * 16 < y.cols(); ++p) finish(row, p, zero());
    else if (part.up->dtype == DType::f32) adapt_token<float>(part, finish, row, id, inner);
    else if (part.up->dtype == DType::f16) adapt_token<F16>(part, finish, row, id, inner);
    else adapt_token<Bf16>(part, finish, row, id, inner);
  }
}

}  // namespace weft::ISA
