// quoted: text as a JSON string.
#pragma once
#include <string>
#include <string_view>

namespace weft::host {

inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text)
    if (c == '"' || c == '\\') out += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) >= 0x20) out += c;
  return out + "\"";
}

}  // namespace weft::host
