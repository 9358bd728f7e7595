#include "pack/panels.h"

#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"
#include "pack/formats.h"
#include "pack/pairs.h"
#include "pack/plain.h"
#include "quant/dequant.h"

namespace weft {

static const Format* find_format(DType dtype) {
  for (const Format& format : kFormats)
    if (format.dtype == dtype) return &format;
  return nullptr;
}

static bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

bool has_panels(DType dtype) { return is_float(dtype) || find_format(dtype); }

size_t panel_bytes(DType dtype, int64_t cols) {
  if (is_float(dtype)) return bytes_of(dtype, static_cast<size_t>(cols * kPanelRows));
  if (const Format* format = find_format(dtype)) return static_cast<size_t>(format->panel_bytes(cols));
  fail(ErrorKind::unsupported, "[pack] this type is not packed: " + std::string(info(dtype).name));
}

size_t panels_bytes(DType dtype, int64_t rows, int64_t cols) {
  return static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows) * panel_bytes(dtype, cols);
}

namespace {

// Where the parts of one row of one block lie in a quantised panel.
struct Place {
  const Format& format;
  std::byte* codes;  // of the block's first chunk
  std::byte* head;
  int row;

  Place(const Format& format, std::byte* panel, int64_t cols, int64_t block, int row)
      : format(format), codes(panel + block * format.chunks() * format.chunk_bytes()),
        head(panel + format.code_bytes(cols) + block * format.head_bytes()), row(row) {}

  // The four bytes that hold one plane of group `group` (four codes) of the block, and where in each byte it starts.
  std::byte* word(int group, bool high) const {
    const int g = group % 8, vector = high ? format.low + g % format.high : g % format.low;
    return codes + group / 8 * format.chunk_bytes() + vector * 64 + row * 4;
  }
  static int shift(int group, int bits) { return group % 8 / bits * bits; }
  std::byte* half(int which) const { return head + which * 2 * kPanelRows + row * 2; }
  uint8_t* sub(int j, bool min) const {
    const int start = 2 * kPanelRows * (format.mins ? 2 : 1) + (min ? format.scales_bytes() : 0);
    return reinterpret_cast<uint8_t*>(head) + start + j / 2 * 2 * kPanelRows + row * 2 + j % 2;
  }
};

// The lowest `bits` bits of every byte of a word.
constexpr uint32_t mask(int bits) { return ((1u << bits) - 1u) * 0x01010101u; }

void put_word(std::byte* place, uint32_t codes, int shift) {
  uint32_t word;
  std::memcpy(&word, place, 4);
  word |= codes << shift;
  std::memcpy(place, &word, 4);
}

uint32_t get_word(const std::byte* place, int bits, int shift) {
  uint32_t word;
  std::memcpy(&word, place, 4);
  return word >> shift & mask(bits);
}

void put(const Place& place, const Plain& plain) {
  const Format& format = place.format;
  for (int group = 0; group < format.block / 4; ++group) {
    uint32_t codes;
    std::memcpy(&codes, plain.code + group * 4, 4);
    put_word(place.word(group, false), codes & mask(format.low), Place::shift(group, format.low));
    if (format.high)
      put_word(place.word(group, true), codes >> format.low & mask(format.high), Place::shift(group, format.high));
  }
  std::memcpy(place.half(0), &plain.d, 2);
  if (format.mins) std::memcpy(place.half(1), &plain.m, 2);
  for (int j = 0; j < format.subs; ++j) {
    *place.sub(j, false) = format.nibbles ? static_cast<uint8_t>(plain.scale[j] | plain.min[j] << 4) : plain.scale[j];
    if (format.mins && !format.nibbles) *place.sub(j, true) = plain.min[j];
  }
}

void get(const Place& place, Plain& plain) {
  const Format& format = place.format;
  for (int group = 0; group < format.block / 4; ++group) {
    uint32_t codes = get_word(place.word(group, false), format.low, Place::shift(group, format.low));
    if (format.high)
      codes |= get_word(place.word(group, true), format.high, Place::shift(group, format.high)) << format.low;
    std::memcpy(plain.code + group * 4, &codes, 4);
  }
  std::memcpy(&plain.d, place.half(0), 2);
  if (format.mins) std::memcpy(&plain.m, place.half(1), 2);
  for (int j = 0; j < format.subs; ++j) {
    const uint8_t scale = *place.sub(j, false);
    plain.scale[j] = format.nibbles ? scale & 15 : scale;
    if (format.mins) plain.min[j] = format.nibbles ? scale >> 4 : *place.sub(j, true);
  }
}

void pack_floats(size_t size, const std::byte* from, int64_t cols, int row, std::byte* panel) {
  std::byte* to = panel + static_cast<size_t>(row) * size;
  for (int64_t k = 0; k < cols; ++k, from += size, to += kPanelRows * size) std::memcpy(to, from, size);
}

void pack_blocks(const Format& format, const std::byte* from, int64_t cols, int row, std::byte* panel) {
  const auto bytes = static_cast<size_t>(info(format.dtype).bytes);
  for (int64_t block = 0; block < cols / format.block; ++block, from += bytes) {
    Plain plain;
    spread(format.dtype, from, plain);
    put(Place(format, panel, cols, block, row), plain);
  }
}

}  // namespace

void pack_panels(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                 int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  const Format* format = find_format(dtype);
  const size_t stride = panel_bytes(dtype, cols);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel)
    for (int row = 0; row < kPanelRows && panel * kPanelRows + row < rows; ++row) {
      const int64_t place = panel * kPanelRows + row;
      const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[place] : place) * row_bytes;
      std::byte* to = out + static_cast<size_t>(panel) * stride;
      if (format) pack_blocks(*format, from, cols, row, to);
      else pack_floats(bytes_of(dtype, 1), from, cols, row, to);
    }
}

static void read_packed(const Weight& weight, int64_t row, float* out) {
  const size_t stride = panel_bytes(weight.dtype, weight.cols);
  // Place only writes through what `put` is given; reading shares its arithmetic.
  auto* panel = const_cast<std::byte*>(weight.data) + static_cast<size_t>(row / kPanelRows) * stride;
  const int lane = static_cast<int>(row % kPanelRows);
  if (const Format* format = find_format(weight.dtype)) {
    for (int64_t block = 0; block < weight.cols / format->block; ++block) {
      Plain plain;
      get(Place(*format, panel, weight.cols, block, lane), plain);
      values(*format, plain, out + block * format->block);
    }
    return;
  }
  const size_t size = bytes_of(weight.dtype, 1);
  for (int64_t k = 0; k < weight.cols; ++k)
    dequantise(weight.dtype, panel + static_cast<size_t>(k * kPanelRows + lane) * size, out + k, 1);
}

static void read_pairs(const Weight& weight, int64_t row, float* out) {
  const auto* from = reinterpret_cast<const uint16_t*>(weight.data) +
                     row / kPairRows * kPairRows * padded_columns(weight.cols) + row % kPairRows * 2;
  for (int64_t k = 0; k < weight.cols; ++k) out[k] = bf16_to_float(from[k / 2 * kPairRows * 2 + k % 2]);
}

void read_row(const Weight& weight, int64_t row, float* out) {
  if (weight.layout == Layout::panels) return read_packed(weight, row, out);
  if (weight.layout == Layout::pairs) return read_pairs(weight, row, out);
  const auto cols = static_cast<size_t>(weight.cols);
  dequantise(weight.dtype, weight.data + static_cast<size_t>(row) * bytes_of(weight.dtype, cols), out, cols);
}

}  // namespace weft
