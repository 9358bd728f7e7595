// narrow: y = x B in a narrower arithmetic than float32, for training; B [depth, columns] is a weight or a weight turned around.
//
// B is taken in blocks of 256 x 256: widened to float32, then rounded into strips of 16 columns. Rows of x are rounded beside
// it. An element's sum is cut at fixed places, so neither the team nor other rows change a bit.
#pragma once
#include <type_traits>

#include "kernels/narrow_wide.h"
#include "kernels/weight_rows.h"
#if defined(WEFT_ISA_amx)
#include "kernels/narrow_bf16.h"
#endif
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include "kernels/narrow_half.h"
#endif

namespace weft::ISA {

// Parts of the scratch, each a multiple of 64 bytes.
constexpr int64_t kSourceBytes = (WeightRows::kTileBytes + 63) / 64 * 64;
static_assert(kSourceBytes >= (kPanels * 16 + 1) * kDepth * int64_t{sizeof(float)});  // which panels and rows fit in too
static_assert(kDepth == kNarrowDepth);

// Strips of W turned around: B [K, N], from panels, each of which is a strip.
struct Turned {
  const Weight& weight;
  int64_t matrix;
  std::byte* scratch;

  template <class Form>
  WEFT_INLINE void strips(int64_t k, int64_t deep, int64_t column, int64_t wide, Form& form) const {
    const std::byte* data = weight.stack ? weight.stack[matrix] : weight.data;
    const Product a{nullptr, nullptr, weight.dtype, weight.layout, data, weight.cols, weight.rows, scratch};
    for (int64_t n = 0; n < wide; n += 16) {
      Block<float> b{};
      b.depth = deep;
      fetch_panels(a, (column + n) / 16, 1, k, b);
      for (int64_t d = 0; d < deep; d += kNarrowChain)
        form.put(n / 16, d, b.w + d * 16, 16, smaller(kNarrowChain, deep - d), smaller(16, wide - n));
    }
  }
};

// Strips of W as it is: B [N, K].
struct Straight {
  const Weight& weight;
  int64_t matrix;
  std::byte* scratch;

  template <class Form>
  WEFT_INLINE void strips(int64_t n, int64_t deep, int64_t column, int64_t wide, Form& form) const {
    static_assert(WeightRows::kTileRows == kNarrowChain);
    const WeightRows source{weight, matrix, reinterpret_cast<float*>(scratch)};
    for (int64_t d = 0; d < deep; d += kNarrowChain) {
      const int64_t here = smaller(kNarrowChain, deep - d);
      const auto [from, stride] = source.read(n + d, here, column, wide);
      for (int64_t k = 0; k < wide; k += 16) form.put(k / 16, d, from + k, stride, here, smaller(16, wide - k));
    }
  }
};

// What a task multiplies: rows [first, end) of x with a matrix of the weight.
struct Share {
  int64_t matrix, first, end;
};

// Tasks of at most kNarrowRows rows and 256 columns. A worker knows only the sizes before its first task, so a stack has as many
// tasks as any starts could need, some of which have no rows.
struct NarrowTasks {
  int64_t rows, matrices, across, step, pieces;
  const int32_t* starts;  // null: one matrix

  WEFT_INLINE NarrowTasks(int64_t rows, int64_t columns, const Weight& weight, const int32_t* starts, int workers)
      : rows(rows), matrices(weight.matrices), across(parts(columns, kNarrowColumns)), starts(starts) {
    const int64_t wanted = larger(32, smaller(kNarrowRows, parts(rows * across, 2 * workers)));
    step = rows ? smaller(kNarrowRows, parts(parts(rows, parts(rows, wanted)), 16) * 16) : wanted;
    pieces = starts ? smaller(matrices, rows) + rows / step : parts(rows, step);
  }
  WEFT_INLINE int64_t count() const { return pieces * across; }
  WEFT_INLINE int64_t column(int64_t task) const { return task % across * kNarrowColumns; }
  WEFT_INLINE Share at(int64_t task) const {
    int64_t index = task / across;
    if (!starts) return {0, index * step, smaller(rows, (index + 1) * step)};
    for (int64_t matrix = 0, from = 0, to; matrix < matrices; ++matrix, from = to) {
      to = larger(from, smaller(rows, starts[matrix + 1]));  // whatever starts say, rows exist and are in order
      const int64_t mine = parts(to - from, step);
      if (index < mine) return {matrix, from + index * step, smaller(to, from + (index + 1) * step)};
      index -= mine;
    }
    return {0, 0, 0};
  }
};

// y [rows, wide] = x [rows, depth] B, or with `more` that added to it. The columns of B begin at `column`, its rows at `row`.
template <class Form, class Source>
static void multiply_narrow(const Source& source, int64_t row, int64_t column, const float* x, int64_t x_stride, int64_t rows,
                            int64_t depth, float* y, int64_t y_stride, int64_t wide, bool more, std::byte* scratch) {
  Form form(scratch);
  for (int64_t d = 0; d < depth; d += kNarrowDepth) {
    const int64_t deep = smaller(kNarrowDepth, depth - d);
    source.strips(row + d, deep, column, wide, form);
    for (int64_t r = 0; r < rows; ++r) form.put_row(r, x + r * x_stride + d, deep);
    form.multiply(rows, deep, y, y_stride, wide, more || d > 0);
  }
}

#if !defined(WEFT_ISA_amx)
using Bf16Form = WideForm<true>;
#endif
#if !defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
using HalfForm = WideForm<false>;
#endif

// Calls f with (a null pointer to) the form of numbers that `to` names.
template <class F>
WEFT_INLINE void with_form(Narrow to, F f) {
  if (to == Narrow::bf16) f(static_cast<Bf16Form*>(nullptr));
  else f(static_cast<HalfForm*>(nullptr));
}

}  // namespace weft::ISA
