// tiktoken: a file of lines "base64 rank". It contains neither the split pattern nor the special tokens.
#include <charconv>

#include "core/error.h"
#include "core/utf8.h"
#include "text/load/base64.h"
#include "text/tokenizer.h"

namespace weft::text {

namespace {

constexpr const char* kWhere = "tiktoken";

void read_line(std::string_view line, int64_t first_id, Vocab& vocab, std::string& token) {
  const size_t space = line.find(' ');
  int64_t rank = -1;
  const char* end = line.data() + line.size();
  if (space != std::string_view::npos) {
    const auto [stop, error] = std::from_chars(line.data() + space + 1, end, rank);
    if (error != std::errc{} || stop != end) rank = -1;
  }
  if (rank < 0 || rank >= kMaxTokens)
    fail(ErrorKind::format, kWhere, "a line must be a token and its rank: '" +
                                std::string(line.substr(0, 64)) + "'");
  token.clear();
  for (const char c : from_base64(line.substr(0, space), kWhere))
    utf8::append(token, byte_alphabet::character(static_cast<unsigned char>(c)));
  if (token.empty()) fail(ErrorKind::format, kWhere, "a token is empty: rank " + std::to_string(rank));
  vocab.add(token, first_id + rank);
}

}  // namespace

std::unique_ptr<Tokenizer> from_tiktoken(std::string_view file, const TiktokenOptions& options) {
  Parts parts;
  std::string token;
  parts.vocab.reserve(file.size() / 16, file.size());
  while (!file.empty()) {
    const size_t end = std::min(file.find('\n'), file.size());
    std::string_view line = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) read_line(line, options.first_id, parts.vocab, token);
  }
  parts.splitters.push_back(split_by_expression(options.pattern, {false, false, true}));
  if (options.nfc) parts.normaliser.add(form_normaliser(Form::nfc));
  parts.model = std::make_unique<ByteBpe>(parts.vocab);
  parts.decoder.kind = Decoding::bytes;
  for (const auto& [content, id] : options.special) {
    parts.vocab.add(content, id);
    AddedToken added;
    added.content = content;
    added.id = static_cast<int32_t>(id);
    added.special = true;
    parts.added.push_back(std::move(added));
  }
  if (options.bos != kNone) {
    if (!parts.vocab.has(options.bos)) fail(ErrorKind::format, kWhere, "bos is not in the vocabulary");
    surround(options.bos, kNone, parts);
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
