// added: tokens that are found in the text before the model sees it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/vocab.h"

namespace weft::text {

struct AddedToken {
  std::string content;
  int32_t id = kNone;
  bool special = false;      // a control token: not printed by default, and only found where the caller trusts the text
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalised text
  bool as_written = false;   // there, but the token itself is not normalised
};

// Which added tokens a text may contain.
enum class Parse : uint8_t {
  all,       // every one
  ordinary,  // those that are not special; special ones are text
  none,      // none: everything is text
};

// Finds added tokens, leftmost first and of those at one place the longest.
class AddedTokens {
 public:
  static constexpr size_t kMaxBytes = 1024;  // bounds the work per byte of text

  void add(const AddedToken& token, std::string_view searched);  // `searched`: the content, normalised where asked
  bool empty() const { return trie_.empty(); }

  // Calls text(piece) and token(id, piece) for the parts of `text` in order.
  template <class OnText, class OnToken>
  void scan(std::string_view text, Parse parse, OnText&& on_text, OnToken&& on_token) const;

 private:
  struct Found {
    size_t start, end;
    const AddedToken* token;
  };
  // The next match at or after `from`; start is text.size() when there is none.
  Found next(std::string_view text, size_t from) const;
  // Whether the match counts, widened by the white space it takes; `taken` is where the last one ended.
  bool accept(std::string_view text, size_t taken, Parse parse, Found& found) const;

  Trie trie_;
  std::vector<AddedToken> tokens_;
};

template <class OnText, class OnToken>
void AddedTokens::scan(std::string_view text, Parse parse, OnText&& on_text, OnToken&& on_token) const {
  size_t taken = 0;
  if (!empty() && parse != Parse::none) {
    Found found = next(text, 0);
    for (; found.start < text.size(); found = next(text, found.end)) {
      Found wide = found;
      if (!accept(text, taken, parse, wide)) continue;
      if (taken < wide.start) on_text(text.substr(taken, wide.start - taken));
      on_token(wide.token->id, text.substr(wide.start, wide.end - wide.start));
      taken = wide.end;
    }
  }
  if (taken < text.size()) on_text(text.substr(taken));
}

}  // namespace weft::text
