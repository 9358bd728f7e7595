// kv_write: the keys and values of the step's tokens into their pages.
//
// Meaning  weft/ops/attention.py; how a row is rounded: weft/ops/state.py
// Layout   k, v [T, G, D] contiguous f32; state as in core/state.h; positions i32 [T], segments i32 [B+1], pages i32
//          [B, P]: token t of sequence b goes to slot position % kPage of page pages[b][position / kPage]
// Method   a task is one head of kPage tokens, so that the lines of a transposed page are filled while they are in L1
// Bound    memory: reads 8 bytes and writes 2 to 8 per channel
#include "kernels/matmul_ints.h"
#include "kernels/round_bf16.h"
#include "kernels/rows.h"
#include "kernels/segments.h"
#include "kernels/state_elements.h"

namespace weft::ISA {

WEFT_INLINE void narrow(float* to, f32x16 x) { store(to, x); }
WEFT_INLINE void narrow(Half* to, f32x16 x) { store_f16(&to->bits, x); }
WEFT_INLINE void narrow(Bf16* to, f32x16 x) { store_rounded(&to->bits, x); }

// A row as the state holds it, in whole vectors; returns its scale.
template <class T>
WEFT_INLINE float narrow_row(T* to, const float* x, int64_t dim) {
  for (int64_t c = 0; c < dim; c += 16) narrow(to + c, load_n(x + c, dim - c));
  return 1;
}
WEFT_INLINE float narrow_row(int8_t* to, const float* x, int64_t dim) {
  const float top = max_lane(fold(dim, zero(), [=](auto at, f32x16 acc) { return max(abs(at(x)), acc); }));
  const float none = sum(fold(dim, zero(), [=](auto at, f32x16 acc) { return acc + (at(x) - at(x)); }));
  // Rounded up to bfloat16: a weight of one times it is exact there, as it is without a scale.
  const float scale = bit_cast<float>((bit_cast<uint32_t>(top / 127.0f) + 0xFFFFu) & 0xFFFF0000u), steps = 1.0f / scale;
  const bool finite = none == 0, usable = finite && steps - steps == 0;  // not zeros, nor so small that this overflows
  const f32x16 by = splat(usable ? steps : 0.0f);
  for (int64_t c = 0; c < dim; c += 16) {
    const f32x16 codes = usable ? round(load_n(x + c, dim - c) * by) : zero();
    store_i8(to + c, min(max(codes, splat(-127.0f)), splat(127.0f)));
  }
  return usable ? scale : finite ? 0.0f : __builtin_nanf("");
}

template <class T>
WEFT_INLINE void write(const Call& call, const Worker& worker) {
  const int64_t tokens = call.in[0].dim[0], heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const float *k = call.in[0].as<float>(), *v = call.in[1].as<float>();
  const KvState& state = *call.in[2].state;
  const int32_t *positions = call.in[3].as<int32_t>(), *segments = call.in[4].as<int32_t>();
  const int32_t* pages = call.in[5].as<int32_t>();
  const int64_t batch = call.in[5].rows(), pages_per_sequence = call.in[5].cols();
  T* row = reinterpret_cast<T*>(worker.scratch);

  const int64_t chunks = (tokens + kPage - 1) / kPage;
  for (int64_t task; (task = worker.next()) < chunks * heads;) {
    const int64_t head = task % heads, first = task / heads * kPage, end = smaller(first + kPage, tokens);
    int64_t b = segment_of(segments, batch, first);
    for (int64_t token = first; token < end; ++token) {
      while (token >= segments[b + 1]) ++b;
      const int64_t page = pages[b * pages_per_sequence + positions[token] / kPage], slot = positions[token] % kPage;
      const int64_t from = (token * heads + head) * dim;
      const auto key = block_of<T>(state, state.key, page, head), value = block_of<T>(state, state.value, page, head);
      const float key_scale = narrow_row(row, k + from, dim);
      for (int64_t c = 0; c < dim; ++c) key.elements[c * kPage + slot] = row[c];
      const float value_scale = narrow_row(row, v + from, dim);
      for (int64_t c = 0; c < dim; ++c) value.elements[slot * dim + c] = row[c];
      if constexpr (kScaled<T>) key.scales[slot] = key_scale, value.scales[slot] = value_scale;
    }
  }
}

KERNEL(kv_write) {
  by_element(*call.in[2].state, [&]<class T>() { write<T>(call, worker); });
}

}  // namespace weft::ISA
