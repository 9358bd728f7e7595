// A tokenizer.json is refused with an Error, or gives a tokenizer that encodes and decodes. The input is the file.
#include "fuzz/json_edits.h"
#include "fuzz/tokenizing.h"

using namespace weft;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (fuzz::accepted([&] { tokenizer = text::from_json(fuzz::as_view(data, size), "tokenizer.json"); }))
    fuzz::check_tokenizer(*tokenizer, fuzz::as_view(data, size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return fuzz::edit_json(data, size, max_size, seed);
}
