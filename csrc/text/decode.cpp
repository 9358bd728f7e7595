// decode: ids to text, at once or one at a time; both go through append_token, so they agree.
#include "core/error.h"
#include "core/utf8.h"
#include "text/pieces.h"
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

// Moves complete characters from `bytes` to the result, malformed sequences as U+FFFD (with `each`, one for each of their
// bytes); an incomplete sequence stays unless this is the end.
std::string take_complete(std::string& bytes, bool end, bool each) {
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
    i += step.ok || !each ? step.size : size_t{1};
  }
  bytes.erase(0, i);
  return out;
}

// Appends text of pieces, less the spaces that its start loses.
void append_text(const Decoder& decoder, std::string_view text, DecodeState& state, std::string& out) {
  const size_t strip = decoder.lead == Decoder::Lead::spaces && !state.text ? decoder.strip : 0;
  while (state.stripped < strip && text.starts_with(' ')) {
    text.remove_prefix(1);
    ++state.stripped;
  }
  state.text |= !text.empty();
  out += text;
}

}  // namespace

void Tokenizer::check_id(int32_t id) const {
  if (id < 0 || id >= parts_.vocab.size())
    fail(ErrorKind::input, "decode", "an id is outside the vocabulary: " + std::to_string(id) +
                                         "; the vocabulary has " + std::to_string(parts_.vocab.size()) + " ids");
}

// Appends bytes, which need not end at the end of a character.
void Tokenizer::append_token(int32_t id, DecodeState& state, std::string& out) const {
  const auto printed = parts_.printed.find(id);
  const bool plain = printed == parts_.printed.end();
  const std::string_view token = plain ? parts_.vocab.token(id) : std::string_view(printed->second);
  const Decoder& decoder = parts_.decoder;
  const bool first = state.first;
  state.first = false;
  switch (decoder.kind) {
    case Decoding::joined: out += token; return;
    case Decoding::spaced: (first ? out : out += ' ') += token; return;
    case Decoding::bytes:
      if (!byte_alphabet::decode(token, out)) out += token;
      return;
    case Decoding::pieces:
      append_piece(token, first, state, out);
      return;
    case Decoding::word_piece: break;
  }
  const bool continues = !first && token.starts_with(decoder.prefix);
  std::string text(first || continues ? "" : " ");
  text += continues ? token.substr(decoder.prefix.size()) : token;
  if (decoder.cleanup) clean_up(text);
  out += text;
}

void Tokenizer::append_piece(std::string_view token, bool first, DecodeState& state, std::string& out) const {
  using Lead = Decoder::Lead;
  const Decoder& decoder = parts_.decoder;
  if (const int byte = decoder.bytes == Decoder::Bytes::text ? -1 : byte_of_token(token); byte >= 0) {
    state.run.push_back(static_cast<char>(byte));
    if (decoder.bytes == Decoder::Bytes::each) finish_run(state, out);
    return;
  }
  finish_run(state, out);
  const bool once = decoder.lead == Lead::mark && state.stripped == 0, again = decoder.lead == Lead::mark_again;
  if (!state.text && (once || again) && token.starts_with(kSpaceMark)) {
    token.remove_prefix(kSpaceMark.size());
    ++state.stripped;
  }
  std::string text(token);
  if (decoder.spaces) replace_all(text, kSpaceMark, decoder.lead == Lead::marks && first ? "" : " ");
  append_text(decoder, text, state, out);
}

void Tokenizer::finish_run(DecodeState& state, std::string& out) const {
  if (state.run.empty()) return;
  std::string text;
  const bool whole = parts_.decoder.bytes == Decoder::Bytes::whole;
  if (!whole || utf8::first_malformed(state.run) == state.run.size()) text = state.run;
  else for (size_t i = 0; i < state.run.size(); ++i) utf8::append(text, utf8::kReplacement);
  state.run.clear();
  append_text(parts_.decoder, text, state, out);
}

std::string Tokenizer::decode(const int32_t* ids, size_t count, bool skip_special) const {
  std::string bytes;
  bytes.reserve(count * 5);
  DecodeState state;
  for (size_t i = 0; i < count; ++i) {
    check_id(ids[i]);
    if (!parts_.vocab.has(ids[i]) || (skip_special && is_special(ids[i]))) continue;
    append_token(ids[i], state, bytes);
  }
  finish_run(state, bytes);
  return take_complete(bytes, true, parts_.decoder.bytes == Decoder::Bytes::each);
}

std::string Tokenizer::bytes_of(int32_t id) const {
  check_id(id);
  std::string out;
  if (!parts_.vocab.has(id)) return out;
  DecodeState state;
  state.first = false;
  state.text = true;
  append_token(id, state, out);
  return out += state.run;
}

std::string Tokenizer::Stream::add(int32_t id) {
  tokenizer_->check_id(id);
  if (!tokenizer_->parts_.vocab.has(id) || (skip_special_ && tokenizer_->is_special(id))) return {};
  tokenizer_->append_token(id, state_, waiting_);
  return take_complete(waiting_, false, tokenizer_->parts_.decoder.bytes == Decoder::Bytes::each);
}

std::string Tokenizer::Stream::finish() {
  tokenizer_->finish_run(state_, waiting_);
  state_ = {};
  return take_complete(waiting_, true, tokenizer_->parts_.decoder.bytes == Decoder::Bytes::each);
}

}  // namespace weft::text
