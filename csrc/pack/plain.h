// plain: one quantised block with its fields spread out: one byte per code, scales as integers. It is the step
// between the file's bit layouts and the panels'.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "pack/formats.h"

namespace weft {

struct Plain {
  uint16_t d = 0, m = 0;     // half bits; m is dmin for the K types, z for q4_z
  uint8_t scale[16] = {};    // as stored: two's complement where the format says so
  uint8_t min[16] = {};
  uint8_t code[256] = {};    // stored code: signed code + offset, or the index of a level
};

// Reads one block of the file's layout; `dtype` is one of kFormats.
void spread(DType dtype, const std::byte* block, Plain& plain);

// The block's scale, by which integer scales and codes are multiplied.
float scale_of(const Format& format, const Plain& plain);

// The block's values, with the operations of `dequantise` in the same order.
void values(const Format& format, const Plain& plain, float* out);

}  // namespace weft
