// base64: strict, except that padding may be left out.
#include "text/load/base64.h"

#include <array>
#include <cstdint>

#include "core/error.h"

namespace weft::text {

namespace {

constexpr std::array<int8_t, 256> kValues = [] {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < 64; ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  return values;
}();

}  // namespace

std::string from_base64(std::string_view text, std::string_view where) {
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int digit = kValues[static_cast<unsigned char>(text[i])];
    if (digit < 0) fail(ErrorKind::format, where, "malformed base64: at character " + std::to_string(i));
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 0) out.push_back(static_cast<char>(bits >> (6 - i % 4 * 2) & 0xFF));
  }
  return out;
}

}  // namespace weft::text
