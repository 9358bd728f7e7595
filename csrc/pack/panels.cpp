#include "pack/panels.h"

#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "pack/formats.h"
#include "pack/pairs.h"
#include "pack/plain.h"
#include "pack/spread.h"
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
  fail(ErrorKind::unsupported, "pack", "this type has no packed layout: " + std::string(info(dtype).name));
}

size_t panels_bytes(DType dtype, int64_t rows, int64_t cols) {
  return static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows) * panel_bytes(dtype, cols);
}

namespace {

// Where the parts of one row of one block lie in a quantised panel.
struct Place {
  const Format& format;
  std::byte* codes;  // of the block's first chunk
  std::byte* header;
  int row;

  Place(const Format& format, std::byte* panel, int64_t cols, int64_t block, int row)
      : format(format), codes(panel + block * format.chunks() * format.chunk_bytes()),
        header(panel + format.code_bytes(cols) + block * format.header_bytes()), row(row) {}

  // The four bytes of vector `vector` of the chunk that group `group` (four codes) of the block is in.
  std::byte* word(int group, int vector) const { return codes + group / 8 * format.chunk_bytes() + vector * 64 + row * 4; }
  std::byte* half(int which) const { return header + which * 2 * kPanelRows + row * 2; }
  uint8_t* sub(int j, bool min) const {
    const int start = 2 * kPanelRows * (format.mins ? 2 : 1) + (min ? format.scales_bytes() : 0);
    return reinterpret_cast<uint8_t*>(header) + start + j / 2 * 2 * kPanelRows + row * 2 + j % 2;
  }
};

// The lowest `bits` bits of every byte of a word.
constexpr uint32_t mask(int bits) { return ((1u << bits) - 1u) * 0x01010101u; }

uint32_t get_word(const std::byte* place, int bits, int shift) {
  uint32_t word;
  std::memcpy(&word, place, 4);
  return word >> shift & mask(bits);
}

// Four codes of group g of a chunk, out of the plane of `bits` bits whose first vector is `first`.
uint32_t get_group(const Place& place, int group, int bits, int first) {
  const int g = group % 8;
  if (bits != 3) return get_word(place.word(group, first + g % bits), bits, g / bits * bits);
  if (g < 6) return get_word(place.word(group, first + g % 3), 3, g < 3 ? 1 : 4);
  uint32_t codes = 0;
  for (int v = 0; v < 3; ++v)
    codes |= get_word(place.word(group, first + v), 1, g == 6 ? 7 : 0) << (g == 6 ? 2 - v : v);
  return codes;
}

// The words of one plane of a chunk: those of group g, g + bits, … side by side in the bytes of vector g.
template <int bits>
void put_plane(const uint32_t* groups, std::byte* vectors) {
  for (int v = 0; v < bits; ++v) {
    uint32_t word = 0;
    if constexpr (bits == 3)
      word = groups[v] << 1 | groups[v + 3] << 4 | (groups[7] >> v & mask(1)) | (groups[6] >> (2 - v) & mask(1)) << 7;
    else
      for (int g = v; g < 8; g += bits) word |= groups[g] << (g - v);
    std::memcpy(vectors + v * 64, &word, 4);
  }
}

template <Format format>
void put_codes(const uint8_t* code, std::byte* chunk) {
  uint32_t groups[8], part[8];
  std::memcpy(groups, code, 32);
  for (int g = 0; g < 8; ++g) part[g] = groups[g] & mask(format.low);
  put_plane<format.low>(part, chunk);
  if constexpr (format.high > 0) {
    for (int g = 0; g < 8; ++g) part[g] = groups[g] >> format.low & mask(format.high);
    put_plane<format.high>(part, chunk + format.low * 64);
  }
}

template <Format format>
void put(const Place& place, const Plain& plain) {
  for (int chunk = 0; chunk < format.chunks(); ++chunk)
    put_codes<format>(plain.code + chunk * kChunk, place.codes + chunk * format.chunk_bytes() + place.row * 4);
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
    uint32_t codes = get_group(place, group, format.low, 0);
    if (format.high) codes |= get_group(place, group, format.high, format.low) << format.low;
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

// Row `row` of a panel, from the file's form of it.
using PackRow = void (*)(const std::byte* from, int64_t cols, int row, std::byte* panel);

template <class Element>
void pack_floats(const std::byte* from, int64_t cols, int row, std::byte* panel) {
  std::byte* to = panel + static_cast<size_t>(row) * sizeof(Element);
  for (int64_t k = 0; k < cols; ++k)
    std::memcpy(to + k * kPanelRows * static_cast<int64_t>(sizeof(Element)),
                from + k * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
}

template <DType type>
void pack_blocks(const std::byte* from, int64_t cols, int row, std::byte* panel) {
  constexpr Format format = format_of(type);
  Plain plain;
  for (int64_t block = 0; block < cols / format.block; ++block) {
    spread_bytes<type>(from + block * static_cast<int64_t>(sizeof(typename BlockOf<type>::Block)), plain);
    put<format>(Place(format, panel, cols, block, row), plain);
  }
}

PackRow row_packer(DType dtype) {
  switch (dtype) {
#define WEFT_PACK(type) \
  case DType::type: return &pack_blocks<DType::type>;
    WEFT_PACKED_TYPES(WEFT_PACK)
#undef WEFT_PACK
    case DType::f32: return &pack_floats<float>;
    default: return &pack_floats<uint16_t>;
  }
}

}  // namespace

void pack_panels(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                 int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  const size_t stride = panel_bytes(dtype, cols);  // throws for a type without panels
  const PackRow pack_row = row_packer(dtype);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel)
    for (int row = 0; row < kPanelRows && panel * kPanelRows + row < rows; ++row) {
      const int64_t place = panel * kPanelRows + row;
      const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[place] : place) * row_bytes;
      pack_row(from, cols, row, out + static_cast<size_t>(panel) * stride);
    }
}

void pack_halves(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                 int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  if (dtype == DType::f16)
    return pack_panels(dtype, rows_data, row_bytes, row_order, rows, cols, out, panel_begin, panel_end);
  std::vector<float> values(static_cast<size_t>(cols));
  auto* halves = reinterpret_cast<uint16_t*>(out);
  for (int64_t place = panel_begin * kPanelRows; place < panel_end * kPanelRows && place < rows; ++place) {
    const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[place] : place) * row_bytes;
    dequantise(dtype, from, values.data(), values.size());
    uint16_t* to = halves + place / kPanelRows * kPanelRows * cols + place % kPanelRows;
    for (int64_t k = 0; k < cols; ++k) to[k * kPanelRows] = float_to_half(values[static_cast<size_t>(k)]);
  }
}

static void read_packed(const Weight& weight, const std::byte* data, int64_t row, float* out) {
  const size_t stride = panel_bytes(weight.dtype, weight.cols);
  // Place only writes through what `put` is given; reading shares its arithmetic.
  auto* panel = const_cast<std::byte*>(data) + static_cast<size_t>(row / kPanelRows) * stride;
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

static void read_pairs(const Weight& weight, const std::byte* data, int64_t row, float* out) {
  const auto* from = reinterpret_cast<const uint16_t*>(data) +
                     row / kPairRows * kPairRows * padded_columns(weight.cols) + row % kPairRows * 2;
  for (int64_t k = 0; k < weight.cols; ++k) out[k] = bf16_to_float(from[k / 2 * kPairRows * 2 + k % 2]);
}

void read_row(const Weight& weight, int64_t row, float* out, int64_t matrix) {
  const std::byte* data = weight.stack ? weight.stack[matrix] : weight.data;
  if (weight.layout == Layout::panels) return read_packed(weight, data, row, out);
  if (weight.layout == Layout::pairs) return read_pairs(weight, data, row, out);
  const auto cols = static_cast<size_t>(weight.cols);
  dequantise(weight.dtype, data + static_cast<size_t>(row) * bytes_of(weight.dtype, cols), out, cols);
}

}  // namespace weft
