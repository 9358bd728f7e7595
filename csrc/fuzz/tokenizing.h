// tokenizing: what holds for any tokenizer that a reader made, whatever file it was made from.
#pragma once
#include <vector>

#include "fuzz/target.h"
#include "text/tokenizer.h"

namespace weft::fuzz {

inline constexpr std::string_view kSample =
    "Hello, w\xC3\xB6rld!\tI'm 42 \xE2\x96\x81\xE2\x96\x81 \xEF\xBC\xA1\xE4\xBD\xA0 e\xCC\x81 <s> [CLS]\n\n  \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB.";
inline constexpr size_t kTextBytes = 2048;

// Ids decode to text, the same at once and piece by piece.
inline std::string check_decoding(const text::Tokenizer& tokenizer, const text::Ids& ids, bool skip_special) {
  const std::string whole = tokenizer.decode(ids.data(), ids.size(), skip_special);
  REQUIRE(utf8::first_malformed(whole) == whole.size());
  text::Tokenizer::Stream stream(tokenizer, skip_special);
  std::string joined;
  for (const int32_t id : ids) joined += stream.add(id);
  joined += stream.finish();
  REQUIRE(joined == whole);
  return whole;
}

// Offsets lie in the text, between characters, and come with the same ids.
inline void check_offsets(const text::Tokenizer& tokenizer, std::string_view text) {
  const size_t length = utf8::characters(text);
  for (const text::Unit unit : {text::Unit::bytes, text::Unit::characters}) {
    const text::Encoded found = tokenizer.encode_located(text, {}, true, text::Parse::all, unit);
    REQUIRE(found.ids == tokenizer.encode(text, true, text::Parse::all));
    REQUIRE(found.origins.size() == found.ids.size() && found.types.size() == found.ids.size());
    for (const text::Origin& origin : found.origins) {
      REQUIRE(origin.start <= origin.end && origin.end <= (unit == text::Unit::bytes ? text.size() : length));
      for (const uint32_t at : {origin.start, origin.end})
        REQUIRE(unit == text::Unit::characters || at == text.size() ||
                !utf8::continues(static_cast<unsigned char>(text[at])));
    }
  }
}

// Ids are in the vocabulary and the same each time; `text` is UTF-8. Returns the ids without special tokens around them.
inline text::Ids check_encoding(const text::Tokenizer& tokenizer, std::string_view text) {
  text::Ids plain;
  for (const text::Parse parse : {text::Parse::all, text::Parse::ordinary, text::Parse::none})
    for (const bool special : {true, false}) {
      plain = tokenizer.encode(text, special, parse);
      for (const int32_t id : plain) REQUIRE(tokenizer.vocab().has(id));
      REQUIRE(plain == tokenizer.encode(text, special, parse));
      check_decoding(tokenizer, plain, !special);
    }
  check_offsets(tokenizer, text);
  const text::Encoded pair = tokenizer.encode_pair(text, kSample, true, text::Parse::all);
  REQUIRE(pair.ids.size() == pair.types.size());
  return plain;
}

// Every call of a tokenizer. A text may be refused (a normaliser may let it grow too much), ids may not.
inline void check_tokenizer(const text::Tokenizer& tokenizer, std::string_view bytes) {
  const std::string text = as_text(bytes.substr(0, kTextBytes));
  for (const std::string_view sample : {std::string_view(), kSample, std::string_view(text)})
    accepted([&] { check_encoding(tokenizer, sample); });
  text::Ids ids;
  for (int32_t id = 0; id < std::min<int32_t>(tokenizer.vocab().size(), 300); ++id) ids.push_back(id);
  check_decoding(tokenizer, ids, false);
  check_decoding(tokenizer, ids, true);
  const int32_t outside[] = {-1, static_cast<int32_t>(tokenizer.vocab().size())};
  for (const int32_t id : outside) REQUIRE(!accepted([&] { tokenizer.decode(&id, 1, false); }));
}

}  // namespace weft::fuzz
