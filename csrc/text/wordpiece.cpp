// wordpiece: greedy longest match on a trie, so a word costs its length times the longest token at worst.
#include "core/utf8.h"
#include "text/model.h"

namespace weft::text {

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
  bool finished = word.size() <= max_chars_ || utf8::characters(word) <= max_chars_;
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

void WordPiece::locate(std::string_view word, const int32_t* ids, size_t count, const Vocab&, Workspace& work) const {
  if (count == 1 && ids[0] == unknown_) return work.extents.assign(1, {0, word.size()});
  work.extents.clear();
  for (size_t i = 0, at = 0; i < count; ++i) {
    const size_t size = trie_.longest(word.substr(at), i == 0 ? 0 : continuation_).size;
    work.extents.push_back({at, at + size});
    at += size;
  }
}

}  // namespace weft::text
