// formats: how each type that is packed into panels splits into code planes and scales. One line a type; packing,
// reading back and the kernels are all derived from it.
//
// This header is compiled for every instruction set: constants and consteval functions only.
#pragma once
#include <cstdint>

#include "core/dtype.h"

namespace weft {

constexpr int kPanelRows = 16;  // rows of a panel: one vector of outputs
constexpr int kChunk = 32;      // columns of a chunk: eight groups of four

struct Format {
  DType dtype;
  int block;        // columns that share d
  int low, high;    // bits of a code in the low and in the high plane
  int offset;       // signed code = stored code - offset
  int subs;         // sub-blocks with an integer scale of their own; 0: none
  bool mins;        // has minima: m beside d, or dmin and one integer minimum per sub-block
  bool signed_subs; // the integer scales are signed
  bool nibbles;     // scale and minimum of a sub-block share a byte, scale in the low nibble
  bool levels;      // a code is an index into the levels of the non-linear 4-bit types
  bool powers;      // these are E2M1's, doubled, and d is a power of two, kept as bfloat16

  constexpr int bits() const { return low + high; }
  constexpr int chunks() const { return block / kChunk; }
  constexpr int chunk_bytes() const { return 64 * bits(); }
  constexpr int scales_bytes() const { return subs * kPanelRows; }
  constexpr int mins_bytes() const { return mins && !nibbles ? subs * kPanelRows : 0; }
  constexpr int header_bytes() const { return 2 * kPanelRows * (mins ? 2 : 1) + scales_bytes() + mins_bytes(); }
  constexpr int64_t code_bytes(int64_t cols) const { return cols / kChunk * chunk_bytes(); }
  constexpr int64_t panel_bytes(int64_t cols) const {
    return (code_bytes(cols) + cols / block * header_bytes() + 63) / 64 * 64;
  }
};

inline constexpr Format kFormats[] = {
    // type        block low high offset subs mins   signed nibbles levels powers
    {DType::q4_0,   32,  4,  0,   8,    0,  false, false, false,  false, false},
    {DType::q4_1,   32,  4,  0,   0,    0,  true,  false, false,  false, false},
    {DType::q5_0,   32,  4,  1,   16,   0,  false, false, false,  false, false},
    {DType::q5_1,   32,  4,  1,   0,    0,  true,  false, false,  false, false},
    {DType::q8_0,   32,  8,  0,   128,  0,  false, false, false,  false, false},
    {DType::iq4_nl, 32,  4,  0,   128,  0,  false, false, false,  true,  false},
    {DType::mxfp4,  32,  4,  0,   128,  0,  false, false, false,  true,  true},
    {DType::q2_k,   256, 2,  0,   0,    16, true,  false, true,   false, false},
    {DType::q3_k,   256, 2,  1,   4,    16, false, true,  false,  false, false},
    {DType::q4_k,   256, 4,  0,   0,    8,  true,  false, false,  false, false},
    {DType::q5_k,   256, 4,  1,   0,    8,  true,  false, false,  false, false},
    {DType::q6_k,   256, 4,  2,   32,   16, false, true,  false,  false, false},
    {DType::iq4_xs, 256, 4,  0,   128,  8,  false, true,  false,  true,  false},
};
// The same list, for a switch over types.
#define WEFT_PACKED_TYPES(X) \
  X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(mxfp4) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(iq4_xs)

consteval Format format_of(DType dtype) {
  for (const Format& format : kFormats)
    if (format.dtype == dtype) return format;
  throw "not a packed type";
}

}  // namespace weft
