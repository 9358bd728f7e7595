// A vocab.txt is refused with an Error, or gives a tokenizer that encodes and decodes. The input is a byte of options,
// then the file.
#include "fuzz/tokenizing.h"

using namespace weft;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  const uint8_t flags = fields.byte();
  text::VocabFileOptions options;
  options.rules = {(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0};
  if (flags & 16) options.special = {"[UNK]", "[CLS]", "[SEP]"};
  if (flags & 32) options.unknown = options.first = options.separator = "";
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (fuzz::accepted([&] { tokenizer = text::from_vocab_file(fields.rest(), options); }))
    fuzz::check_tokenizer(*tokenizer, fields.rest());
  return 0;
}
