// wordpiece: greedy longest match on a trie, so a word costs its length times the longest token at worst.
#include "text/model.h"

namespace weft::text {

namespace {

size_t characters(std::string_view word) {
  size_t count = 0;
  for (const char c : word) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace

WordPiece::WordPiece(const Vocab& vocab, std::string_view prefix, int32_t unknown, size_t max_chars)
    : unknown_(unknown), max_chars_(max_chars) {
  for (int32_t id = 0; id < vocab.size(); ++id)
    if (vocab.has(id)) trie_.add(vocab.token(id), id);
  continuation_ = trie_.walk(prefix);
}

void WordPiece::encode(std::string_view word, Workspace& work, Ids& out) const {
  work.cache.fetch(word, out, [&] { encode_fresh(word, out); });
}

void WordPiece::encode_fresh(std::string_view word, Ids& out) const {
  const size_t before = out.size();
  bool finished = word.size() <= max_chars_ || characters(word) <= max_chars_;
  uint32_t from = 0;
  while (finished && !word.empty()) {
    const Trie::Match match = trie_.longest(word, from);
    finished = match.size != 0;
    if (finished) out.push_back(match.value);
    word.remove_prefix(match.size);
    from = continuation_;
  }
  if (finished) return;
  out.resize(before);
  out.push_back(unknown_);
}

}  // namespace weft::text
