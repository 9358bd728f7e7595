// gguf: what the reader of GGUF metadata shares with its table of pre-tokenizers.
#pragma once
#include "text/tokenizer.h"

namespace weft::text {

struct Pre {
  bool whole_words = false;
  bool bos = false;  // where the file does not say
};

// Adds the normaliser and the splitters of a name; throws Error(unsupported) for an unknown one.
Pre read_pre(std::string_view name, Parts& parts);

}  // namespace weft::text
