// unicode: what the tokenizers ask about characters, and the normalisation forms.
//
// The tables come from tools/make_unicode_tables.py, which also says which Unicode version each property follows.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "unicode/trace.h"

namespace weft::text {

enum : uint32_t {
  kLetter = 1 << 0,
  kNumber = 1 << 1,
  kPunctuation = 1 << 2,
  kSymbol = 1 << 3,
  kMark = 1 << 4,
  kSpace = 1 << 5,
  kUpperish = 1 << 6,  // Lu Lt Lm Lo M
  kLowerish = 1 << 7,  // Ll Lm Lo M
  kWord = 1 << 8,      // \w
  kNumeric = 1 << 9,   // as kNumber, one Unicode version later
  kBertPunctuation = 1 << 10,
  kBertAccent = 1 << 11,
  kBertControl = 1 << 12,
  kCombining = 1 << 13,    // what StripAccents removes
  kUnstableNfc = 1 << 14,  // NFC may change a text that has this character
  kCanonical = 1 << 15,    // has a canonical decomposition (Hangul aside)
  kCompatible = 1 << 16,   // has a compatibility or canonical decomposition
};

struct Property {
  uint32_t flags;
  int32_t lower;   // distance to the lower-case character
  uint8_t order;   // canonical combining class
};

const Property& property(char32_t code);

inline bool has(char32_t code, uint32_t flags) { return (property(code).flags & flags) != 0; }

// Appends the lower-case form; U+0130 is the one character that becomes two.
void append_lower(std::string& out, char32_t code);

// Ideographs around which BERT puts spaces.
bool is_cjk(char32_t code);

enum class Form { nfc, nfd, nfkc, nfkd };

// `text` in the given form, appended to `out`. False when `text` is in that form already; `out` is then left alone.
bool normalise(std::string_view text, Form form, std::string& out, Trace* trace = nullptr);

}  // namespace weft::text
