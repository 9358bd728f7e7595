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

// The levels that codes are indices of; signed, in the order of the codes. Those of the lower iq types are a magnitude out
// of the type's grid, and above it the bit of its sign; those of iq1 are eight times -1, 0 or 1, and the shift by one.
enum class Levels : uint8_t { none, q3, iq1, iq2, iq3_xxs, iq3_s, iq4, fp4 };
inline constexpr int8_t kLevels[][16] = {
    {},
    {-4, -3, -2, -1, 0, 1, 2, 3},
    {-7, 1, 9, 0, -9, -1, 7, 0},
    {8, 25, 43, 0, -8, -25, -43, 0},
    {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62},
    {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15},
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
};

struct Format {
  DType dtype;
  int block;        // columns that share d
  int low, high;    // bits of a code in the low and in the high plane
  int offset;       // signed code = stored code - offset; of levels, as the kernels look them up
  int subs;         // sub-blocks with an integer scale of their own; 0: none
  bool mins;        // has minima: m beside d, or dmin and one integer minimum per sub-block
  bool signed_subs; // the integer scales are signed
  bool nibbles;     // scale and minimum of a sub-block share a byte, scale in the low nibble
  Levels levels;    // the numbers that codes stand for, where these are not the codes
  int parts;        // d is this many times the scale

  constexpr bool powers() const { return levels == Levels::fp4; }  // d is a power of two, kept as bfloat16
  constexpr bool zeros() const { return dtype == DType::q4_z; }    // m is a zero point z: the minimum is -d z
  // The number that a stored code stands for.
  constexpr int value(int code) const {
    return levels == Levels::none ? code - offset : kLevels[static_cast<int>(levels)][code];
  }
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
    // type         block low high offset subs mins   signed nibbles levels           parts
    {DType::q4_0,    32,   4,  0,    8,    0,   false, false, false,   Levels::none,     1},
    {DType::q4_1,    32,   4,  0,    0,    0,   true,  false, false,   Levels::none,     1},
    {DType::q4_z,    32,   4,  0,    0,    0,   true,  false, false,   Levels::none,     1},
    {DType::q5_0,    32,   4,  1,    16,   0,   false, false, false,   Levels::none,     1},
    {DType::q5_1,    32,   4,  1,    0,    0,   true,  false, false,   Levels::none,     1},
    {DType::q8_0,    32,   8,  0,    128,  0,   false, false, false,   Levels::none,     1},
    {DType::iq4_nl,  32,   4,  0,    128,  0,   false, false, false,   Levels::iq4,      1},
    {DType::mxfp4,   32,   4,  0,    128,  0,   false, false, false,   Levels::fp4,      1},
    {DType::q2_k,    256,  2,  0,    0,    16,  true,  false, true,    Levels::none,     1},
    {DType::q3_k,    256,  3,  0,    128,  16,  false, true,  false,   Levels::q3,       1},
    {DType::q4_k,    256,  4,  0,    0,    8,   true,  false, false,   Levels::none,     1},
    {DType::q5_k,    256,  4,  1,    0,    8,   true,  false, false,   Levels::none,     1},
    {DType::q6_k,    256,  4,  2,    32,   16,  false, true,  false,   Levels::none,     1},
    {DType::iq4_xs,  256,  4,  0,    128,  8,   false, true,  false,   Levels::iq4,      1},
    {DType::iq3_s,   256,  4,  0,    128,  8,   false, false, false,   Levels::iq3_s,    1},
    {DType::iq3_xxs, 256,  4,  0,    128,  8,   false, false, false,   Levels::iq3_xxs,  4},
    {DType::iq2_s,   256,  3,  0,    128,  16,  false, false, false,   Levels::iq2,      8},
    {DType::iq2_xs,  256,  3,  0,    128,  16,  false, false, false,   Levels::iq2,      8},
    {DType::iq2_xxs, 256,  3,  0,    128,  8,   false, false, false,   Levels::iq2,      8},
    {DType::iq1_m,   256,  3,  0,    128,  16,  false, false, false,   Levels::iq1,      8},
    {DType::iq1_s,   256,  3,  0,    128,  8,   false, false, false,   Levels::iq1,      8},
    {DType::tq1_0,   256,  2,  0,    1,    8,   false, false, false,   Levels::none,     1},
    {DType::tq2_0,   256,  2,  0,    1,    8,   false, false, false,   Levels::none,     1},
};
// The same list, for a switch over types.
#define WEFT_PACKED_TYPES(X) \
  X(q4_0) X(q4_1) X(q4_z) X(q5_0) X(q5_1) X(q8_0) X(iq4_nl) X(mxfp4) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) \
  X(iq4_xs) X(iq3_s) X(iq3_xxs) X(iq2_s) X(iq2_xs) X(iq2_xxs) X(iq1_m) X(iq1_s) X(tq1_0) X(tq2_0)

consteval Format format_of(DType dtype) {
  for (const Format& format : kFormats)
    if (format.dtype == dtype) return format;
  throw "not a packed type";
}

}  // namespace weft
