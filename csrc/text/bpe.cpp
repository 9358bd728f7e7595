// bpe: byte-level byte-pair encoding. The joining of pairs is in merges.cpp.
#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/model.h"

namespace weft::text {

namespace byte_alphabet {

namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> to{};
  std::array<int16_t, 0x144> from{};
  constexpr Tables() {
    for (int16_t& byte : from) byte = -1;
    char32_t next = 0x100;  // the others follow from U+0100 in order
    for (unsigned byte = 0; byte < 256; ++byte) {
      to[byte] = stands_for_itself(byte) ? byte : next++;
      from[to[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr Tables kTables;

}  // namespace

char32_t character(unsigned char byte) { return kTables.to[byte]; }
int byte(char32_t character) { return character < kTables.from.size() ? kTables.from[character] : -1; }

bool decode(std::string_view token, std::string& out) {
  const size_t before = out.size();
  for (const char *p = token.data(), *end = p + token.size(); p < end;) {
    const int value = byte(utf8::next(p));
    if (value < 0) return out.resize(before), false;
    out.push_back(static_cast<char>(value));
  }
  return true;
}

}  // namespace byte_alphabet

MergeTable::Pair pair_of(const Vocab& vocab, const Merge& merge, uint32_t rank, std::string& scratch) {
  scratch.assign(merge.left);
  scratch += merge.right;
  const MergeTable::Pair pair{vocab.find(merge.left), vocab.find(merge.right), rank, vocab.find(scratch)};
  if (pair.left == kNone || pair.right == kNone || pair.id == kNone)
    fail(ErrorKind::format, "vocabulary", "a merge names tokens that are not in the vocabulary: '" + std::string(merge.left) +
                                "' and '" + std::string(merge.right) + "', merge " + std::to_string(rank));
  return pair;
}

ByteBpe::ByteBpe(const Vocab& vocab, const std::vector<Merge>& merges, const Options& options) : options_(options) {
  read_bytes(vocab);
  std::string scratch;
  merges_.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) merges_.add(pair_of(vocab, merges[i], static_cast<uint32_t>(i), scratch));
  if (options.whole_words) read_words(vocab);
}

ByteBpe::ByteBpe(const Vocab& vocab) {
  constexpr size_t kMaxBytes = 1024, kMaxPairs = size_t{1} << 25;  // each way to cut a token in two is looked up
  options_.whole_words = true;
  read_bytes(vocab);
  if (std::find(byte_ids_.begin(), byte_ids_.end(), kNone) != byte_ids_.end())
    fail(ErrorKind::format, "vocabulary", "a byte has no token");
  read_words(vocab);
  std::vector<MergeTable::Pair> pairs;
  for (int32_t id = 0; id < words_.size(); ++id) {
    if (!words_.has(id)) continue;
    const std::string_view word = words_.token(id);
    if (word.size() > kMaxBytes || pairs.size() > kMaxPairs)
      fail(ErrorKind::unsupported, "vocabulary", "a token is too long, or the tokens are too many: id " +
                                       std::to_string(id) + " of " + std::to_string(word.size()) + " bytes");
    for (size_t size = 1; size < word.size(); ++size) {
      const int32_t left = words_.find(word.substr(0, size));
      const int32_t right = left == kNone ? kNone : words_.find(word.substr(size));
      if (right != kNone) pairs.push_back({left, right, static_cast<uint32_t>(id), id});
    }
  }
  merges_.reserve(pairs.size());
  for (const MergeTable::Pair& pair : pairs) merges_.add(pair);
}

void ByteBpe::read_bytes(const Vocab& vocab) {
  std::string scratch;
  for (unsigned byte = 0; byte < 256; ++byte) {
    scratch.clear();
    utf8::append(scratch, byte_alphabet::character(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = vocab.find(scratch);
  }
}

void ByteBpe::read_words(const Vocab& vocab) {
  std::string scratch;
  words_.reserve(static_cast<size_t>(vocab.size()), static_cast<size_t>(vocab.size()) * 8);
  for (int32_t id = 0; id < vocab.size(); ++id) {
    scratch.clear();
    if (vocab.has(id) && byte_alphabet::decode(vocab.token(id), scratch)) words_.add(scratch, id);
  }
}

void ByteBpe::encode(std::string_view word, Workspace& work, Ids& out) const {
  work.cache.fetch(word, out, [&] { encode_fresh(word, work, out); });
}

void ByteBpe::encode_fresh(std::string_view word, Workspace& work, Ids& out) const {
  if (options_.whole_words) {
    if (const int32_t id = words_.find(word); id != kNone) {
      out.push_back(id);
      return;
    }
  }
  const size_t before = out.size();
  const size_t count = first_ids(word, out);
  out.resize(before + merges_.apply(out.data() + before, count, work.merging));
}

void ByteBpe::locate(std::string_view word, const int32_t* ids, size_t count, const Vocab& vocab,
                     Workspace& work) const {
  const auto missing = [&](size_t at) {
    return at < word.size() && byte_ids_[static_cast<unsigned char>(word[at])] == kNone;
  };
  work.extents.clear();
  for (size_t i = 0, at = 0; i < count; ++i) {
    while (options_.unknown == kNone && missing(at)) ++at;
    size_t end = at + utf8::characters(vocab.token(ids[i]));  // each stands for a byte
    if (ids[i] == options_.unknown && missing(at))
      for (end = at + 1; options_.fuse_unknown && missing(end);) ++end;
    work.extents.push_back({at, end});
    at = end;
  }
}

size_t ByteBpe::first_ids(std::string_view word, Ids& out) const {
  const size_t before = out.size();
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id == kNone;
    if (!unknown) out.push_back(id);
    else if (options_.unknown != kNone && !(after_unknown && options_.fuse_unknown)) out.push_back(options_.unknown);
    after_unknown = unknown;
  }
  return out.size() - before;
}

}  // namespace weft::text
