// char_bpe: byte-pair encoding of characters, and what it shares with unigram.cpp.
#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

constexpr size_t kMaxPieceBytes = 256;      // bounds the ways to cut a piece in two, each of which is looked up
constexpr size_t kMaxPairs = size_t{1} << 25;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

ByteIds byte_ids_of(const Vocab& vocab) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  ByteIds ids;
  std::string token = "<0x00>";
  for (size_t byte = 0; byte < 256; ++byte) {
    token[3] = kDigits[byte >> 4];
    token[4] = kDigits[byte & 15];
    ids[byte] = vocab.find(token);
  }
  return ids;
}

void WordCuts::note(std::string_view piece) {
  char32_t last = 0;
  for (const char *start = piece.data(), *p = start, *end = p + piece.size(); p < end;) {
    const bool first = p == start;
    const char32_t code = utf8::next(p);
    if (code == 0x2581 && !first) {
      if (last < 128) ascii_.set(last);
      else others_.insert(last);
    }
    last = code;
  }
}

size_t WordCuts::next(std::string_view text, size_t from) const {
  for (size_t at = text.find(kSpaceMark, from + 1); at != std::string_view::npos; at = text.find(kSpaceMark, at + 1)) {
    const auto byte = static_cast<unsigned char>(text[at - 1]);
    if (byte < 128) {
      if (!ascii_[byte]) return at;
      continue;
    }
    const char* p = text.data() + at - 1;
    while (utf8::continues(static_cast<unsigned char>(*p))) --p;
    if (!others_.contains(utf8::next(p))) return at;
  }
  return text.size();
}

bool Fallback::append_bytes(std::string_view character, Ids& out) const {
  if (!bytes) return false;
  for (const char c : character)
    if (byte_ids[static_cast<unsigned char>(c)] == kNone) return false;
  for (const char c : character) out.push_back(byte_ids[static_cast<unsigned char>(c)]);
  return true;
}

CharBpe::CharBpe(const Vocab& vocab, const std::vector<Merge>& merges, const Fallback& fallback) : fallback_(fallback) {
  ascii_.fill(kNone);
  for (int32_t id = 0; id < vocab.size(); ++id) {
    if (!vocab.has(id) || vocab.token(id).empty()) continue;
    const std::string_view token = vocab.token(id);
    const char* p = token.data();
    const char32_t code = utf8::next(p);
    if (p != token.data() + token.size()) continue;
    characters_.emplace(code, id);
    if (code < 128) ascii_[code] = id;
  }
  std::string scratch;
  merges_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    merges_.add(pair_of(vocab, merges[i], static_cast<uint32_t>(i), scratch));
    cuts_.note(scratch);
  }
  cuts_.allow(characters_.contains(0x2581));
}

CharBpe::CharBpe(const Vocab& vocab, const std::vector<bool>& mergeable, const std::vector<float>& scores,
                 const Fallback& fallback)
    : fallback_(fallback), scored_(true), first_virtual_(static_cast<int32_t>(vocab.size())) {
  std::vector<int32_t> order;
  for (int32_t id = 0; id < vocab.size(); ++id)
    if (mergeable[static_cast<size_t>(id)]) order.push_back(id);
  const auto score = [&](int32_t id) { return scores[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
  std::vector<MergeTable::Pair> pairs;
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;  // equal scores are equal ranks: the leftmost wins
    add_splits(vocab, mergeable, order[i], rank, pairs);
  }
  merges_.reserve(pairs.size());
  for (const MergeTable::Pair& pair : pairs) merges_.add(pair);
  ascii_.fill(kNone);
  for (const auto& [code, id] : characters_)
    if (code < 128) ascii_[code] = id;
  const auto mark = characters_.find(0x2581);
  cuts_.allow(mark != characters_.end() && mark->second < first_virtual_);
}

int32_t CharBpe::symbol_of(const Vocab& vocab, const std::vector<bool>& mergeable, std::string_view text) {
  const int32_t id = vocab.find(text);
  const bool piece = id != kNone && mergeable[static_cast<size_t>(id)];
  const char* p = text.data();
  const char32_t code = utf8::next(p);
  if (p != text.data() + text.size()) return piece ? id : kNone;
  const auto [found, fresh] = characters_.try_emplace(code, id);
  if (fresh && !piece) {
    found->second = first_virtual_ + static_cast<int32_t>(virtual_text_.size());
    virtual_text_.emplace_back(text);
  }
  return found->second;
}

void CharBpe::add_splits(const Vocab& vocab, const std::vector<bool>& mergeable, int32_t piece, uint32_t rank,
                         std::vector<MergeTable::Pair>& pairs) {
  const std::string_view text = vocab.token(piece);
  if (text.size() > kMaxPieceBytes || pairs.size() > kMaxPairs)
    fail(ErrorKind::unsupported, "vocabulary", "a piece is too long, or the pieces are too many: id " +
                                     std::to_string(piece) + " of " + std::to_string(text.size()) + " bytes");
  if (text.empty()) return;
  cuts_.note(text);
  const char *start = text.data(), *end = start + text.size(), *p = start;
  utf8::next(p);
  if (p == end) symbol_of(vocab, mergeable, text);
  while (p < end) {
    const auto size = static_cast<size_t>(p - start);
    const int32_t left = symbol_of(vocab, mergeable, text.substr(0, size));
    if (const int32_t right = symbol_of(vocab, mergeable, text.substr(size)); left != kNone && right != kNone)
      pairs.push_back({left, right, rank, piece});
    utf8::next(p);
  }
}

void CharBpe::encode(std::string_view text, Workspace& work, Ids& out) const {
  cuts_.each(text, [&](std::string_view word) {
    work.cache.fetch(word, out, [&] { encode_word(word, work, out); });
  });
}

void CharBpe::encode_word(std::string_view word, Workspace& work, Ids& out) const {
  const size_t before = out.size();
  if (!scored_) append_symbols(word, out);
  for (const char *p = word.data(), *end = p + word.size(); scored_ && p < end;) {
    const char32_t code = utf8::next(p);
    const auto found = characters_.find(code);
    // A character that is in no piece merges with nothing; a negative number keeps it until resolve().
    out.push_back(found != characters_.end() ? found->second : -2 - static_cast<int32_t>(code));
  }
  out.resize(before + merges_.apply(out.data() + before, out.size() - before, work.merging));
  if (scored_) resolve(before, out);
}

bool CharBpe::missing(std::string_view rest) const {
  const char* p = rest.data();
  const auto found = characters_.find(utf8::next(p));
  return found == characters_.end() || (scored_ && found->second >= first_virtual_);
}

void CharBpe::locate(std::string_view text, const int32_t* ids, size_t count, const Vocab& vocab,
                     Workspace& work) const {
  const auto behind_character = [&](size_t at) {
    do ++at;
    while (at < text.size() && utf8::continues(static_cast<unsigned char>(text[at])));
    return at;
  };
  work.extents.clear();
  for (size_t i = 0, at = 0; i < count; ++i) {
    const std::string_view token = vocab.token(ids[i]), rest = text.substr(std::min(at, text.size()));
    const std::string_view next = i + 1 < count ? vocab.token(ids[i + 1]) : "";
    size_t end = at + token.size();
    if (!rest.starts_with(token) && byte_of_token(token) >= 0) {
      end = at + 1;
    } else if (!rest.starts_with(token) && ids[i] == fallback_.unknown) {
      end = behind_character(at);
      while (fallback_.fuse && end < text.size() && missing(text.substr(end)) &&
             (next.empty() || !text.substr(end).starts_with(next)))
        end = behind_character(end);
    }
    work.extents.push_back({at, end});
    at = end;
  }
}

// Puts bytes or the unknown token where characters without a piece are left.
void CharBpe::resolve(size_t before, Ids& out) const {
  const auto missing = [&](int32_t id) { return id < 0 || id >= first_virtual_; };
  if (std::none_of(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), missing)) return;
  const Ids symbols(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
  out.resize(before);
  bool after_unknown = false;
  for (const int32_t id : symbols) {
    if (!missing(id)) {
      out.push_back(id);
      after_unknown = false;
      continue;
    }
    std::string character;
    if (id < 0) utf8::append(character, static_cast<char32_t>(-2 - id));
    else character = virtual_text_[static_cast<size_t>(id - first_virtual_)];
    const bool unknown = !fallback_.append_bytes(character, out);
    if (unknown && fallback_.unknown != kNone && !(after_unknown && fallback_.fuse)) out.push_back(fallback_.unknown);
    after_unknown = unknown;
  }
}

// As the tokenizers library does it: a character in bytes does not end a run of unknown ones.
void CharBpe::append_symbols(std::string_view word, Ids& out) const {
  bool unknown = false;
  for (const char *p = word.data(), *end = p + word.size(); p < end;) {
    const char* start = p;
    const char32_t code = utf8::next(p);
    int32_t id = code < 128 ? ascii_[code] : kNone;
    if (code >= 128)
      if (const auto found = characters_.find(code); found != characters_.end()) id = found->second;
    if (id != kNone) {
      if (unknown) out.push_back(fallback_.unknown);
      unknown = false;
      out.push_back(id);
    } else if (!fallback_.append_bytes({start, static_cast<size_t>(p - start)}, out) && fallback_.unknown != kNone) {
      if (unknown && !fallback_.fuse) out.push_back(fallback_.unknown);
      unknown = true;
    }
  }
  if (unknown) out.push_back(fallback_.unknown);
}

}  // namespace weft::text
