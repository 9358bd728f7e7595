// A file of ranks is refused with an Error, or gives a tokenizer that encodes and decodes. The input is a byte of options,
// the id of rank 0 and of the token put first, then the file.
#include "fuzz/tokenizing.h"

using namespace weft;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  const uint8_t flags = fields.byte();
  text::TiktokenOptions options;
  options.pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
  options.first_id = fields.number<int16_t>();
  if (flags & 1) options.bos = fields.number<int16_t>();
  if (flags & 2) options.special = {{"<s>", fields.number<int16_t>()}, {"[CLS]", 300}};
  options.nfc = (flags & 4) != 0;
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (fuzz::accepted([&] { tokenizer = text::from_tiktoken(fields.rest(), options); }))
    fuzz::check_tokenizer(*tokenizer, fields.rest());
  return 0;
}
