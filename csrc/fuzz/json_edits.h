// json_edits: mutations that leave JSON whole: a value is repeated, removed, or replaced by another or by an odd one.
#pragma once
#include <random>
#include <vector>

#include "fuzz/target.h"

namespace weft::fuzz {

struct Span {
  size_t begin, end;
};

// Where a string that begins at `at` ends.
inline size_t string_end(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return std::min(at + 1, text.size());
}

// Every value of a text that may be JSON, keys included.
inline std::vector<Span> json_values(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n,:";
  std::vector<Span> found;
  std::vector<size_t> open;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    size_t end = at + 1;
    if (c == '{' || c == '[') {
      open.push_back(at);
    } else if (c == '}' || c == ']') {
      if (!open.empty()) found.push_back({open.back(), end}), open.pop_back();
    } else if (kBetween.find(c) == std::string_view::npos) {
      end = c == '"' ? string_end(text, at) : std::min(text.find_first_of(" \t\r\n,:{}[]\"", at + 1), text.size());
      found.push_back({at, end});
    }
    at = end;
  }
  return found;
}

inline constexpr std::string_view kOddValues[] = {
    "null", "true", "false", "0", "-1", "1", "255", "65536", "4194303", "4194304", "2147483647", "4294967296",
    "9223372036854775807", "18446744073709551616", "1e308", "1e400", "-0.5", "1e-400", "\"\"", "\" \"", "[]", "{}",
    "[[]]", "[null]", "\"\\u0000\"", "\"\\ud83d\\ude00\"", "\"\\ud800\"", "\"\xE2\x96\x81\"", "\"<0x0A>\"",
};

inline size_t edit_json(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  const std::string text(as_view(data, size));
  const std::vector<Span> values = json_values(text);
  const auto pick = [&] { return values[random() % values.size()]; };
  if (values.empty() || random() % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const Span at = pick();
  std::string put = text.substr(at.begin, at.end - at.begin);
  switch (random() % 5) {
    case 0: put += "," + put; break;
    case 1: put.clear(); break;
    case 2: {
      const Span other = pick();
      put = text.substr(other.begin, other.end - other.begin);
      break;
    }
    case 3: put = kOddValues[random() % std::size(kOddValues)]; break;
    default: {
      std::string inside = put.substr(put.size() > 2 ? 1 : 0, put.size() > 2 ? put.size() - 2 : put.size());
      const size_t before = inside.size();
      inside.resize(before + 16);
      inside.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(inside.data()), before, inside.size()));
      put = put.size() > 2 ? put.substr(0, 1) + inside + put.back() : inside;
    }
  }
  std::string edited = text.substr(0, at.begin) + put;
  // A value that goes takes its comma with it.
  size_t behind = at.end;
  if (put.empty() && behind < text.size() && text[behind] == ',') ++behind;
  else if (put.empty() && edited.ends_with(',')) edited.pop_back();
  edited += text.substr(behind);
  if (edited.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, edited.data(), edited.size());
  return edited.size();
}

}  // namespace weft::fuzz
