// tokenizer: encoding. Decoding is in decode.cpp, the readers in load/.
#include "text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>

#include "core/error.h"

namespace weft::text {

namespace {
constexpr size_t kPooled = 64;  // workspaces kept; reserved up front, so giving one back cannot fail
}  // namespace

class Tokenizer::Lease {
 public:
  explicit Lease(const Tokenizer& owner) : owner_(owner), work_(owner.take()) {}
  ~Lease() {
    work_->trim();
    const std::lock_guard lock(owner_.pool_mutex_);
    if (owner_.pool_.size() < kPooled) owner_.pool_.push_back(std::move(work_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Workspace& operator*() const { return *work_; }

 private:
  const Tokenizer& owner_;
  std::unique_ptr<Workspace> work_;
};

std::unique_ptr<Workspace> Tokenizer::take() const {
  {
    const std::lock_guard lock(pool_mutex_);
    if (!pool_.empty()) {
      auto work = std::move(pool_.back());
      pool_.pop_back();
      return work;
    }
  }
  auto work = std::make_unique<Workspace>();
  work->cut.resize(parts_.splitters.size());
  return work;
}

Tokenizer::Tokenizer(Parts parts) : parts_(std::move(parts)), special_(static_cast<size_t>(parts_.vocab.size())) {
  std::array<std::string, 2> buffers;
  pool_.reserve(kPooled);
  for (const AddedToken& token : parts_.added) {
    if (!parts_.vocab.has(token.id))
      fail(ErrorKind::format, "[tokenizer] an added token without an entry in the vocabulary: '" + token.content + "'");
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
    if (!token.normalized) {
      raw_.add(token, token.content);
      continue;
    }
    if (token.as_written) {
      normalised_.add(token, token.content);
      continue;
    }
    const std::string_view searched = parts_.normaliser.apply(token.content, {}, buffers);
    normalised_.add(token, searched);
    if (searched != token.content) parts_.printed.emplace(token.id, searched);
  }
}

Ids Tokenizer::encode(std::string_view text, bool add_special, Parse parse) const {
  Ids out;
  const Lease work(*this);
  if (!add_special) return encode_plain(text, parse, *work, out), out;
  for (const Part& part : parts_.single) {
    if (part.kind == Part::Kind::token) out.push_back(part.id);
    else encode_plain(text, parse, *work, out);
  }
  return out;
}

Encoded Tokenizer::encode_pair(std::string_view first, std::string_view second, bool add_special, Parse parse) const {
  Encoded out;
  const Lease work(*this);
  for (const Part& part : parts_.pair) {
    if (part.kind == Part::Kind::token) {
      if (add_special) out.ids.push_back(part.id);
    } else {
      encode_plain(part.kind == Part::Kind::first ? first : second, parse, *work, out.ids);
    }
    out.types.resize(out.ids.size(), part.type);
  }
  return out;
}

std::vector<Ids> Tokenizer::encode_batch(const std::vector<std::string_view>& texts, bool add_special, Parse parse,
                                         size_t threads) const {
  std::vector<Ids> out(texts.size());
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < texts.size(); i = next++) out[i] = encode(texts[i], add_special, parse);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      error = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (size_t i = 1; i < std::min(threads, texts.size()); ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads to be had: those there are do the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
  return out;
}

void Tokenizer::encode_plain(std::string_view text, Parse parse, Workspace& work, Ids& out) const {
  if (text.size() > kMaxTextBytes)
    fail(ErrorKind::too_long, "[encode] a text is too long: " + std::to_string(text.size()) + " bytes; the limit is " +
                                  std::to_string(kMaxTextBytes));
  out.reserve(out.size() + text.size() / 4 + 8);
  raw_.scan(
      text, parse,
      [&](std::string_view piece) {
        const Place place{piece.data() == text.data(), piece.data() + piece.size() == text.data() + text.size()};
        encode_normalised(piece, place, parse, work, out);
      },
      [&](int32_t id) { out.push_back(id); });
}

void Tokenizer::encode_normalised(std::string_view text, Place place, Parse parse, Workspace& work, Ids& out) const {
  const std::string_view whole = parts_.normaliser.apply(text, place, work.normalised);
  normalised_.scan(
      whole, parse,
      [&](std::string_view piece) { cut(0, piece, place.first && piece.data() == whole.data(), work, out); },
      [&](int32_t id) { out.push_back(id); });
}

void Tokenizer::cut(size_t level, std::string_view text, bool first, Workspace& work, Ids& out) const {
  if (level == parts_.splitters.size()) return parts_.model->encode(text, work, out);
  const Splitter& splitter = *parts_.splitters[level];
  text = splitter.prepare(text, first, work.cut[level]);
  const bool last = level + 1 == parts_.splitters.size();
  while (!text.empty()) {
    const Splitter::Piece piece = splitter.take(text);
    if (piece.keep) {
      if (last) parts_.model->encode(text.substr(0, piece.size), work, out);
      else cut(level + 1, text.substr(0, piece.size), first, work, out);
    }
    text.remove_prefix(piece.size);
    first = false;
  }
}

}  // namespace weft::text
