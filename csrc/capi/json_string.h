// json_string: text as a string of JSON. Not `quoted`: with gcc 13 a call of that name finds std::quoted, too.
#pragma once
#include <string>
#include <string_view>

namespace weft::host {

inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text)
    if (c == '"' || c == '\\') out += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) >= 0x20) out += c;
  return out + "\"";
}

}  // namespace weft::host
