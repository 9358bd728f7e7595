// kv_write: the keys and values of the step's tokens into their pages.
//
// Meaning  weft/ops/attention.py
// Layout   k, v [T, G, D] contiguous f32; state as in core/state.h, f32 or f16; positions i32 [T], segments i32 [B+1],
//          pages i32 [B, P]: token t of sequence b goes to slot position % kPage of page pages[b][position / kPage]
// Method   a task is one head of kPage tokens, so that the lines of a transposed page are filled while they are in L1
// Bound    memory: reads 8 bytes and writes 4 or 8 per channel
#include "core/half.h"
#include "core/state.h"
#include "kernels/rows.h"
#include "kernels/segments.h"

namespace weft::ISA {

WEFT_INLINE void narrow(float* to, float x) { *to = x; }
WEFT_INLINE void narrow(uint16_t* to, float x) { *to = float_to_half(x); }
WEFT_INLINE void narrow16(float* to, f32x16 x, int64_t n) { store_n(to, x, n); }
WEFT_INLINE void narrow16(uint16_t* to, f32x16 x, int64_t n) { store_f16_n(to, x, n); }

template <class T>
WEFT_INLINE void write(const Call& call, const Worker& worker) {
  const int64_t tokens = call.in[0].dim[0], heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const float *k = call.in[0].as<float>(), *v = call.in[1].as<float>();
  const KvState& state = *call.in[2].state;
  const int32_t *positions = call.in[3].as<int32_t>(), *segments = call.in[4].as<int32_t>();
  const int32_t* pages = call.in[5].as<int32_t>();
  const int64_t batch = call.in[5].rows(), pages_per_sequence = call.in[5].cols();
  T *keys = reinterpret_cast<T*>(state.key.data()), *values = reinterpret_cast<T*>(state.value.data());

  const int64_t chunks = (tokens + kPage - 1) / kPage;
  for (int64_t task; (task = worker.next()) < chunks * heads;) {
    const int64_t head = task % heads, first = task / heads * kPage, end = smaller(first + kPage, tokens);
    int64_t b = segment_of(segments, batch, first);
    for (int64_t token = first; token < end; ++token) {
      while (token >= segments[b + 1]) ++b;
      const int64_t page = pages[b * pages_per_sequence + positions[token] / kPage], slot = positions[token] % kPage;
      const int64_t block = (page * heads + head) * dim * kPage, from = (token * heads + head) * dim;
      for (int64_t c = 0; c < dim; ++c) narrow(keys + block + c * kPage + slot, k[from + c]);
      T* value = values + block + slot * dim;
      for (int64_t c = 0; c < dim; c += 16) narrow16(value + c, load_n(v + from + c, dim - c), dim - c);
    }
  }
}

KERNEL(kv_write) {
  if (call.in[2].state->dtype == DType::f16)
    write<uint16_t>(call, worker);
  else
    write<float>(call, worker);
}

}  // namespace weft::ISA
