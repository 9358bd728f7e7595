// tokenizer: encoding. Decoding is in decode.cpp, the readers in load/.
#include "text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>

#include "core/error.h"

namespace weft::text {

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
  work->cut_traces.resize(parts_.splitters.size());
  return work;
}

Tokenizer::Tokenizer(Parts parts) : parts_(std::move(parts)), special_(static_cast<size_t>(parts_.vocab.size())) {
  std::array<std::string, 2> buffers;
  pool_.reserve(kPooled);
  for (const AddedToken& token : parts_.added) {
    if (!parts_.vocab.has(token.id))
      fail(ErrorKind::format, "tokenizer", "an added token is not in the vocabulary: '" + token.content + "'");
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
  if (!add_special) return encode_plain(text, parse, *work, {out}), out;
  for (const Part& part : parts_.single) {
    if (part.kind == Part::Kind::token) out.push_back(part.id);
    else encode_plain(text, parse, *work, {out});
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
      encode_plain(part.kind == Part::Kind::first ? first : second, parse, *work, {out.ids});
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
  } catch (const std::system_error&) {  // no more threads available: the existing ones do the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
  return out;
}

void Tokenizer::encode_plain(std::string_view text, Parse parse, Workspace& work, Out out) const {
  if (text.size() > kMaxTextBytes)
    fail(ErrorKind::too_long, "encode", "a text is too long: " + std::to_string(text.size()) + " bytes; the limit is " +
                                  std::to_string(kMaxTextBytes));
  out.ids.reserve(out.ids.size() + text.size() / 4 + 8);
  work.origins.clear();
  if (out.origins != nullptr) append_origins(text, 0, work.origins);
  const Traced whole{text, out.origins != nullptr ? work.origins.data() : nullptr};
  raw_.scan(
      text, parse,
      [&](std::string_view piece) {
        const Place place{piece.data() == text.data(), piece.data() + piece.size() == text.data() + text.size()};
        encode_normalised(whole.part(piece), place, parse, work, out);
      },
      [&](int32_t id, std::string_view token) { append_added(id, whole.part(token), out); });
}

void Tokenizer::encode_normalised(Traced text, Place place, Parse parse, Workspace& work, Out out) const {
  Traced whole = text;
  whole.text = parts_.normaliser.apply(text.text, place, work.normalised, work.normalised_traces, whole.origins);
  normalised_.scan(
      whole.text, parse,
      [&](std::string_view piece) {
        cut(0, whole.part(piece), place.first && piece.data() == whole.text.data(), work, out);
      },
      [&](int32_t id, std::string_view token) { append_added(id, whole.part(token), out); });
}

void Tokenizer::cut(size_t level, Traced text, bool first, Workspace& work, Out out) const {
  if (level == parts_.splitters.size()) return encode_word(text, work, out);
  const Splitter& splitter = *parts_.splitters[level];
  Trace* trace = text.origins != nullptr ? &work.cut_traces[level] : nullptr;
  if (trace) trace->begin(text.text, text.origins);
  std::string_view rest = splitter.prepare(text.text, first, work.cut[level], trace);
  if (rest.data() != text.text.data()) text = {rest, trace ? trace->written() : nullptr};
  const bool last = level + 1 == parts_.splitters.size();
  while (!rest.empty()) {
    const Splitter::Piece piece = splitter.take(rest);
    const Traced part = text.part(rest.substr(0, piece.size));
    if (piece.keep) last ? encode_word(part, work, out) : cut(level + 1, part, first, work, out);
    rest.remove_prefix(piece.size);
    first = false;
  }
}

void Tokenizer::encode_word(Traced word, Workspace& work, Out out) const {
  const size_t before = out.ids.size();
  parts_.model->encode(word.text, work, out.ids);
  if (out.origins == nullptr) return;
  parts_.model->locate(word.text, out.ids.data() + before, out.ids.size() - before, parts_.vocab, work);
  for (size_t i = 0; i < work.extents.size(); ++i) {
    const auto [start, end] = work.extents[i];
    append_origin(word.origin(start, end), parts_.vocab.token(out.ids[before + i]), out);
  }
}

}  // namespace weft::text
