// added: a trie walk at every byte that can start an added token.
#include "text/added.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "unicode/unicode.h"

namespace weft::text {

namespace {

const char* before(const char* p) {
  do --p;
  while (utf8::continues(static_cast<unsigned char>(*p)));
  return p;
}

bool has_at(const char* p, uint32_t flags) { return has(utf8::next(p), flags); }

}  // namespace

void AddedTokens::add(const AddedToken& token, std::string_view searched) {
  if (searched.empty()) return;
  if (searched.size() > kMaxBytes)
    fail(ErrorKind::unsupported, "tokenizer", "an added token is too long: " + std::to_string(searched.size()) +
                                     " bytes; the limit is " + std::to_string(kMaxBytes));
  trie_.add(searched, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

AddedTokens::Found AddedTokens::next(std::string_view text, size_t from) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (!trie_.starts(static_cast<unsigned char>(text[i]))) continue;
    const Trie::Match match = trie_.longest(text.substr(i, kMaxBytes));
    if (match.size != 0) return {i, i + match.size, &tokens_[static_cast<size_t>(match.value)]};
  }
  return {text.size(), text.size(), nullptr};
}

bool AddedTokens::accept(std::string_view text, size_t taken, Parse parse, Found& found) const {
  const AddedToken& token = *found.token;
  if (token.special && parse == Parse::ordinary) return false;
  const char *first = text.data(), *end = first + text.size();
  if (token.single_word) {
    if (found.start != 0 && has_at(before(first + found.start), kWord)) return false;
    if (found.end != text.size() && has_at(first + found.end, kWord)) return false;
  }
  if (token.lstrip) {
    const char* p = first + found.start;
    const char* limit = first + std::min(taken, found.start);  // what an earlier token took stays with it
    while (p > limit && has_at(before(p), kSpace)) p = before(p);
    found.start = std::max(static_cast<size_t>(p - first), taken);
  }
  if (token.rstrip) {
    // What is taken beyond this token is white space; not looking at it again keeps the scan linear.
    const char* p = first + std::max(found.end, taken);
    for (const char* q = p; q < end && has(utf8::next(q), kSpace);) p = q;
    found.end = static_cast<size_t>(p - first);
  }
  return true;
}

}  // namespace weft::text
