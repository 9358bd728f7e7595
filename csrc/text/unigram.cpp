// unigram: Viterbi over the pieces that start at each character; a word costs its length times the longest piece.
#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

constexpr double kUnknownPenalty = 10;
constexpr size_t kMaxPieceBytes = 1024;  // bounds the work per byte of text

}  // namespace

Unigram::Unigram(const Vocab& vocab, const std::vector<bool>& usable, std::vector<double> scores,
                 const Fallback& fallback)
    : scores_(std::move(scores)), fallback_(fallback) {
  if (fallback_.unknown == kNone)
    fail(ErrorKind::unsupported, "vocabulary", "weft does not support Unigram without an unknown token");
  double lowest = 0;
  for (size_t i = 0; i < scores_.size(); ++i) lowest = i == 0 ? scores_[i] : std::min(lowest, scores_[i]);
  unknown_score_ = lowest - kUnknownPenalty;
  for (int32_t id = 0; id < vocab.size(); ++id) {
    if (!vocab.has(id) || !usable[static_cast<size_t>(id)] || vocab.token(id).empty()) continue;
    if (vocab.token(id).size() > kMaxPieceBytes)
      fail(ErrorKind::unsupported, "vocabulary", "a piece is too long: id " + std::to_string(id));
    trie_.add(vocab.token(id), id);
    cuts_.note(vocab.token(id));
    if (vocab.token(id) == kSpaceMark) cuts_.allow(true);
  }
}

void Unigram::encode(std::string_view text, Workspace& work, Ids& out) const {
  cuts_.each(text, [&](std::string_view word) {
    work.cache.fetch(word, out, [&] { encode_word(word, work, out); });
  });
}

// work.path[i]: the best path that ends before byte i. Only starts of characters are ever reached.
void Unigram::find_path(std::string_view word, Workspace& work) const {
  auto& path = work.path;
  path.assign(word.size() + 1, {0, 0, kNone});
  for (size_t at = 0; at < word.size();) {
    const char* p = word.data() + at;
    utf8::next(p);
    const auto size = static_cast<size_t>(p - word.data()) - at;
    const double here = path[at].score;
    const auto offer = [&](size_t length, int32_t id, double score) {
      Workspace::PathStep& step = path[at + length];
      if (step.size == 0 || here + score > step.score) step = {here + score, static_cast<int32_t>(length), id};
    };
    bool has_character = false;
    trie_.prefixes(word.substr(at), [&](size_t length, int32_t id) {
      offer(length, id, scores_[static_cast<size_t>(id)]);
      has_character |= length == size;
    });
    if (!has_character) offer(size, fallback_.unknown, unknown_score_);
    at += size;
  }
}

// Calls on_piece(id, start, end) for the pieces of the best path, the last first; neighbouring unknown ones are one.
template <class OnPiece>
void Unigram::walk_back(std::string_view word, Workspace& work, OnPiece&& on_piece) const {
  find_path(word, work);
  for (size_t end = word.size(); end > 0;) {
    const Workspace::PathStep& step = work.path[end];
    size_t start = end - static_cast<size_t>(step.size);
    while (step.id == fallback_.unknown && fallback_.fuse && start > 0 && work.path[start].id == fallback_.unknown)
      start -= static_cast<size_t>(work.path[start].size);
    on_piece(step.id, start, end);
    end = start;
  }
}

void Unigram::encode_word(std::string_view word, Workspace& work, Ids& out) const {
  const auto before = static_cast<std::ptrdiff_t>(out.size());
  walk_back(word, work, [&](int32_t id, size_t start, size_t end) {
    const auto bytes = static_cast<std::ptrdiff_t>(out.size());
    if (id == fallback_.unknown && fallback_.append_bytes(word.substr(start, end - start), out))
      std::reverse(out.begin() + bytes, out.end());
    else out.push_back(id);
  });
  std::reverse(out.begin() + before, out.end());
}

void Unigram::locate(std::string_view text, const int32_t*, size_t, const Vocab&, Workspace& work) const {
  Ids bytes;
  work.extents.clear();
  cuts_.each(text, [&](std::string_view word) {
    const auto at = static_cast<size_t>(word.data() - text.data());
    const auto before = static_cast<std::ptrdiff_t>(work.extents.size());
    walk_back(word, work, [&](int32_t id, size_t start, size_t end) {
      bytes.clear();
      const bool whole = id != fallback_.unknown || !fallback_.append_bytes(word.substr(start, end - start), bytes);
      work.extents.insert(work.extents.end(), whole ? 1 : bytes.size(), Extent{at + start, at + end});
    });
    std::reverse(work.extents.begin() + before, work.extents.end());
  });
}

}  // namespace weft::text
