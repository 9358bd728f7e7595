// decode: ids to text, at once or one at a time; both go through append_token, so they agree.
#include "core/error.h"
#include "core/utf8.h"
#include "text/tokenizer.h"

namespace weft::text {

namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t found = text.find(from);
  if (found == std::string::npos) return;
  std::string out;
  size_t start = 0;
  for (; found != std::string::npos; found = text.find(from, start)) {
    out.append(text, start, found - start).append(to);
    start = found + from.size();
  }
  text = out.append(text, start, std::string::npos);
}

void clean_up(std::string& text) {
  static constexpr std::string_view kRules[][2] = {
      {" .", "."},     {" ?", "?"},     {" !", "!"},         {" ,", ","},   {" ' ", "'"},    {" n't", "n't"},
      {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  if (text.find(' ') == std::string::npos) return;
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

// Moves what is complete from `bytes` to the result, malformed sequences as U+FFFD; a sequence cut short stays unless
// this is the end.
std::string take_complete(std::string& bytes, bool end) {
  std::string out;
  size_t i = 0;
  while (i < bytes.size()) {
    const size_t plain = utf8::ascii_prefix(bytes.data() + i, bytes.size() - i);
    out.append(bytes, i, plain);
    i += plain;
    if (i == bytes.size()) break;
    const utf8::Step step = utf8::step(bytes.data() + i, bytes.size() - i);
    if (step.cut && !end) break;
    if (step.ok) out.append(bytes, i, step.size);
    else utf8::append(out, utf8::kReplacement);
    i += step.size;
  }
  bytes.erase(0, i);
  return out;
}

}  // namespace

void Tokenizer::check_id(int32_t id) const {
  if (id < 0 || id >= parts_.vocab.size())
    fail(ErrorKind::input, "[decode] an id outside the vocabulary: " + std::to_string(id) + "; there are " +
                               std::to_string(parts_.vocab.size()));
}

// Appends bytes, which need not end at the end of a character.
void Tokenizer::append_token(int32_t id, bool first, std::string& out) const {
  const auto printed = printed_.find(id);
  const std::string_view token = printed == printed_.end() ? parts_.vocab.token(id) : std::string_view(printed->second);
  const Decoder& decoder = parts_.decoder;
  switch (decoder.kind) {
    case Decoding::joined: out += token; return;
    case Decoding::spaced: (first ? out : out += ' ') += token; return;
    case Decoding::bytes:
      if (!byte_alphabet::decode(token, out)) out += token;
      return;
    case Decoding::word_piece: break;
  }
  const bool continues = !first && token.starts_with(decoder.prefix);
  std::string text(first || continues ? "" : " ");
  text += continues ? token.substr(decoder.prefix.size()) : token;
  if (decoder.cleanup) clean_up(text);
  out += text;
}

std::string Tokenizer::decode(const int32_t* ids, size_t count, bool skip_special) const {
  std::string bytes;
  bytes.reserve(count * 5);
  bool first = true;
  for (size_t i = 0; i < count; ++i) {
    check_id(ids[i]);
    if (!parts_.vocab.has(ids[i]) || (skip_special && is_special(ids[i]))) continue;
    append_token(ids[i], first, bytes);
    first = false;
  }
  return take_complete(bytes, true);
}

std::string Tokenizer::Stream::add(int32_t id) {
  tokenizer_->check_id(id);
  if (!tokenizer_->parts_.vocab.has(id) || (skip_special_ && tokenizer_->is_special(id))) return {};
  tokenizer_->append_token(id, first_, waiting_);
  first_ = false;
  return take_complete(waiting_, false);
}

std::string Tokenizer::Stream::finish() {
  first_ = true;
  return take_complete(waiting_, true);
}

}  // namespace weft::text
