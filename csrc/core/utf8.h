// utf8: decoding and encoding of UTF-8, strict (no surrogates, no overlong forms, nothing above U+10FFFF).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace weft::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;

// One step of decoding: `size` bytes form `code`; ok is false for a malformed sequence, and then `size` is the length
// of its longest well-formed prefix (at least 1), the number of bytes that one U+FFFD replaces.
struct Step {
  char32_t code;
  uint8_t size;
  bool ok;
  bool cut;  // malformed only because the bytes end here
};

inline bool continues(unsigned char byte) { return (byte & 0xC0) == 0x80; }

inline size_t characters(std::string_view text) {  // of well-formed text
  size_t count = 0;
  for (const char c : text) count += !continues(static_cast<unsigned char>(c));
  return count;
}

inline Step step(const char* text, size_t left) {
  const auto* p = reinterpret_cast<const unsigned char*>(text);
  const unsigned lead = p[0];
  if (lead < 0x80) return {lead, 1, true, false};
  unsigned need = 0, low = 0x80, high = 0xBF;  // bounds of the second byte
  char32_t code = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    need = 1, code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    need = 2, code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    need = 3, code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {kReplacement, 1, false, false};
  }
  for (unsigned i = 1; i <= need; ++i) {
    if (i >= left) return {kReplacement, static_cast<uint8_t>(i), false, true};
    if (p[i] < low || p[i] > high) return {kReplacement, static_cast<uint8_t>(i), false, false};
    code = code << 6 | (p[i] & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {code, static_cast<uint8_t>(need + 1), true, false};
}

// Decodes one character of text known to be well formed and moves `p` past it.
inline char32_t next(const char*& p) {
  const auto* u = reinterpret_cast<const unsigned char*>(p);
  if (u[0] < 0x80) return ++p, u[0];
  if (u[0] < 0xE0) return p += 2, static_cast<char32_t>(u[0] & 0x1F) << 6 | (u[1] & 0x3F);
  if (u[0] < 0xF0) return p += 3, static_cast<char32_t>(u[0] & 0x0F) << 12 | (u[1] & 0x3F) << 6 | (u[2] & 0x3F);
  return p += 4, static_cast<char32_t>(u[0] & 0x07) << 18 | (u[1] & 0x3F) << 12 | (u[2] & 0x3F) << 6 | (u[3] & 0x3F);
}

// Writes one character at `out` (room for 4 bytes) and returns how many bytes it took.
inline size_t encode(char32_t code, char* out) {
  if (code < 0x80) return out[0] = static_cast<char>(code), 1;
  if (code < 0x800) {
    out[0] = static_cast<char>(0xC0 | code >> 6);
    out[1] = static_cast<char>(0x80 | (code & 0x3F));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = static_cast<char>(0xE0 | code >> 12);
    out[1] = static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out[2] = static_cast<char>(0x80 | (code & 0x3F));
    return 3;
  }
  out[0] = static_cast<char>(0xF0 | code >> 18);
  out[1] = static_cast<char>(0x80 | (code >> 12 & 0x3F));
  out[2] = static_cast<char>(0x80 | (code >> 6 & 0x3F));
  out[3] = static_cast<char>(0x80 | (code & 0x3F));
  return 4;
}

inline void append(std::string& out, char32_t code) {
  char buffer[4];
  out.append(buffer, encode(code, buffer));
}

// Length of the ASCII run at the start, eight bytes at a time.
inline size_t ascii_prefix(const char* text, size_t size) {
  size_t i = 0;
  for (uint64_t word; i + 8 <= size; i += 8) {
    std::memcpy(&word, text + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < size && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

// Offset of the first malformed byte; text.size() when there is none.
inline size_t first_malformed(std::string_view text) {
  size_t i = 0;
  while (true) {
    i += ascii_prefix(text.data() + i, text.size() - i);
    if (i == text.size()) return i;
    const Step s = step(text.data() + i, text.size() - i);
    if (!s.ok) return i;
    i += s.size;
  }
}

}  // namespace weft::utf8
