// base64: how tokenizer.json writes its table of characters, and tiktoken's files their tokens.
#pragma once
#include <string>
#include <string_view>

namespace weft::text {

std::string from_base64(std::string_view text, const char* where);  // throws Error(format), starting with `where`

}  // namespace weft::text
