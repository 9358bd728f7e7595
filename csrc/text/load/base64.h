// base64: how tokenizer.json writes its table of characters, and tiktoken's files their tokens.
#pragma once
#include <string>
#include <string_view>

namespace weft::text {

std::string from_base64(std::string_view text, std::string_view where);  // throws Error(format)

}  // namespace weft::text
