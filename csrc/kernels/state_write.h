// state_write: keys and values into their pages. How a row is rounded: weft/ops/state.py.
#pragma once
#include "kernels/attention_bias.h"
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

// The largest magnitude of a row, and whether all of it is finite.
struct Extent {
  float top;
  bool finite;
};
WEFT_INLINE Extent extent_of(const float* x, int64_t dim) {
  const f32x16 none = fold(dim, zero(), [=](auto at, f32x16 acc) { return acc + (at(x) - at(x)); });
  return {max_lane(fold(dim, zero(), [=](auto at, f32x16 acc) { return max(abs(at(x)), acc); })), sum(none) == 0};
}

WEFT_INLINE float narrow_row(int8_t* to, const float* x, int64_t dim) {
  const auto [top, finite] = extent_of(x, dim);
  // Rounded up to bfloat16: a weight of one times it is exact there, as it is without a scale.
  const float scale = bit_cast<float>((bit_cast<uint32_t>(top / 127.0f) + 0xFFFFu) & 0xFFFF0000u), steps = 1.0f / scale;
  const bool usable = finite && steps - steps == 0;  // neither zeros nor so small that this overflows
  const f32x16 by = splat(usable ? steps : 0.0f);
  for (int64_t c = 0; c < dim; c += 16) {
    const f32x16 codes = usable ? round(load_n(x + c, dim - c) * by) : zero();
    store_i8(to + c, min(max(codes, splat(-127.0f)), splat(127.0f)));
  }
  return usable ? scale : finite ? 0.0f : __builtin_nanf("");
}

// A row as codes of 4 bits, one in a byte of whole vectors; returns their scale. The row is rounded to 254 steps a side; then the
// scale is the one of a few under which it is nearest to its levels. Numbers are such that sums of squares are exact.
WEFT_INLINE float narrow_row_4(int8_t* to, const float* x, int64_t dim) {
  constexpr float kSteps = 254, kRatio = 1.0f / 8;
  const auto [top, finite] = extent_of(x, dim);
  const float least = top / kSteps;
  const bool usable = finite && least >= 1.17549435e-38f;  // one over it is finite, and bfloat16 has it
  const f32x16 by = splat(usable ? kSteps / top : 0.0f);
  const auto stepped = [&](f32x16 row) { return usable ? round(row * by) : zero(); };
  // f(index) of the nearest level for each lane: that of the last threshold which is below its size.
  const auto nearest = [](f32x16 size, float ratio, auto f) {
    f32x16 found = splat(f(0));
#pragma GCC unroll 8
    for (int i = 1; i < 8; ++i) {
      const float between = 0.5f * static_cast<float>(kLevels[7 + i] + kLevels[8 + i]) * ratio;
      found = where_less(splat(between), size, splat(f(i)), found);
    }
    return found;
  };
  float best = 0, chosen = 0;
  for (int n = 17; n >= 12; --n) {
    const float ratio = static_cast<float>(n) * kRatio;
    const float error = sum(fold(dim, zero(), [&](auto at, f32x16 acc) {
      const f32x16 size = abs(stepped(at(x)));
      const f32x16 off = size - nearest(size, ratio, [&](int i) { return static_cast<float>(kLevels[8 + i]) * ratio; });
      return acc + at.or_else(off * off, zero());
    }));
    if (n == 17 || error < best) best = error, chosen = ratio;
  }
  for (int64_t c = 0; c < dim; c += 16) {
    const f32x16 row = stepped(load_n(x + c, dim - c));
    const f32x16 index = nearest(abs(row), chosen, [](int i) { return static_cast<float>(i); });
    store_i8(to + c, where_less(row, zero(), splat(7.0f) - index, splat(8.0f) + index));
  }
  const uint32_t bits = bit_cast<uint32_t>(least * chosen);  // to the nearest bfloat16, for the reason above
  const float scale = bit_cast<float>((bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u);
  return usable ? scale : finite ? 0.0f : __builtin_nanf("");
}

// Neighbouring tokens of a sequence that lie in one page, from `token` and from `slot` on.
struct Run {
  int64_t token, count, page, head, slot;
};

// Keys wait in scratch until a run is complete; then the transposed page is written line by line, not token by token.
template <class T>
struct RunWriter {
  const KvState& state;
  T* rows;
  float* turned;  // one row before it is rounded
  const Operand *centre, *steady;
  float scales[kPage];

  // `first`: where the operands `centre` and `steady` are, of which kv_write speaks.
  WEFT_INLINE RunWriter(const KvState& state, std::byte* scratch, const Call& call, int first)
      : state(state), rows(reinterpret_cast<T*>(scratch)),
        turned(reinterpret_cast<float*>(scratch + kScratchBytes / 4 * 3)), centre(optional(call, first)),
        steady(optional(call, first + 1)) {}
  WEFT_INLINE int64_t width() const { return (state.dim + 15) / 16 * 16; }
  // How many rows there is room for in half of a worker's scratch.
  WEFT_INLINE int64_t room() const {
    return larger(1, smaller(kPage, static_cast<int64_t>(kScratchBytes / 2 / sizeof(T)) / width()));
  }

  WEFT_INLINE float narrowed(T* to, const float* x) const {
    if constexpr (kScaled<T>)
      if (state.rotated()) {
        walsh_row(turned, x, rotation(state.dim));
        return state.dtype == DType::i4r ? narrow_row_4(to, turned, state.dim) : narrow_row(to, turned, state.dim);
      }
    return narrow_row(to, x, state.dim);
  }
  WEFT_INLINE void add_key(int64_t i, const float* k, int64_t head) {
    if (centre) {
      const float *from = centre->as<float>() + head * state.dim, *by = steady->as<float>();
      fill(turned, state.dim, [=](auto at) { return at(k) - at(from) * at(by); });
      k = turned;
    }
    scales[i] = narrowed(rows + i * width(), k);
  }
  WEFT_INLINE void write_keys(const Run& run) const {
    const auto key = block_of<T>(state, state.key, run.page, run.head);
    if constexpr (kScaled<T>) {
      for (int64_t i = 0; i < run.count; ++i) key.scales[run.slot + i] = scales[i];
      if (state.dtype == DType::i4r) {
        for (int64_t c = 0; c < state.dim; c += 2)
          for (int64_t i = 0; i < run.count; ++i) {
            const T* row = rows + i * width() + c;
            key.elements[c / 2 * kPage + run.slot + i] = static_cast<T>(row[0] | (c + 1 < state.dim ? row[1] << 4 : 0));
          }
        return;
      }
    }
    for (int64_t c = 0; c < state.dim; ++c)
      for (int64_t i = 0; i < run.count; ++i) key.elements[c * kPage + run.slot + i] = rows[i * width() + c];
  }
  WEFT_INLINE void write_value(const Run& run, int64_t i, const float* v) const {
    const auto value = block_of<T>(state, state.value, run.page, run.head);
    if constexpr (kScaled<T>)
      if (state.dtype == DType::i4r) {
        value.scales[run.slot + i] = narrowed(rows, v);
        const int64_t half = (state.dim + 31) / 32 * 16;
        T* to = value.elements + (run.slot + i) * half;
        for (int64_t j = 0; j < half; ++j) {
          const int64_t c = j / 16 * 32 + j % 16;
          to[j] = static_cast<T>((c < state.dim ? rows[c] : 0) | (c + 16 < state.dim ? rows[c + 16] << 4 : 0));
        }
        return;
      }
    T* to = value.elements + (run.slot + i) * state.dim;
    const bool whole = width() == state.dim;  // else the last vector would overwrite another token
    const float scale = narrowed(whole ? to : rows, v);
    for (int64_t c = 0; !whole && c < state.dim; ++c) to[c] = rows[c];
    if constexpr (kScaled<T>) value.scales[run.slot + i] = scale;
  }
};

// Calls f(run) until all tokens and heads are covered. `where` is positions i32 [T], segments i32 [B+1], pages i32 [B, P]:
// token t of sequence b goes to slot position % kPage of page pages[b][position / kPage]. A task is one head of
// at most kPage tokens; a run has at most `room` of them.
template <class F>
WEFT_INLINE void deal_runs(const Worker& worker, const Operand* where, int64_t heads, int64_t room, F f) {
  const int32_t *positions = where[0].as<int32_t>(), *segments = where[1].as<int32_t>(), *pages = where[2].as<int32_t>();
  const int64_t tokens = where[0].cols(), batch = where[2].rows(), pages_per_sequence = where[2].cols();
  // Where each sequence has one token, no two share a page, and a task may have as few as suit the team.
  bool single = tokens == batch;
  for (int64_t b = 0; single && b < batch; ++b) single = segments[b] == b;
  const int64_t most = single ? larger(1, smaller(kPage, tokens * heads / worker.count)) : kPage;
  const int64_t chunks = (tokens + most - 1) / most;
  for (int64_t task; (task = worker.next(chunks * heads)) < chunks * heads;) {
    const int64_t head = task % heads, end = smaller((task / heads + 1) * most, tokens);
    int64_t b = segment_of(segments, batch, task / heads * most);
    for (int64_t token = task / heads * most, count; token < end; token += count) {
      while (token >= segments[b + 1]) ++b;
      const int64_t position = positions[token], last = smaller(end, segments[b + 1]);
      count = 1;
      while (count < room && token + count < last && positions[token + count] == position + count &&
             position % kPage + count < kPage)
        ++count;
      f(Run{token, count, pages[b * pages_per_sequence + position / kPage], head, position % kPage});
    }
  }
}

}  // namespace weft::ISA
