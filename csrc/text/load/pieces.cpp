// pieces: SentencePiece's models, from its own file (a protobuf message) and from the metadata of GGUF files.
#include <cmath>

#include "core/error.h"
#include "core/utf8.h"
#include "unicode/charsmap.h"
#include "text/load/pieces.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

[[noreturn]] void malformed(const std::string& what) { fail(ErrorKind::format, "tokenizer.model", what); }

// A strict reader of one protobuf message: every length is checked against what is left.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    uint64_t number = 0, value = 0;  // value: of a varint, or the bits of a fixed one
    std::string_view bytes;          // of a string or a message
    int wire = 0;
  };

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field = {tag >> 3, 0, {}, static_cast<int>(tag & 7)};
    if (field.number == 0 || field.number >= 1u << 29) malformed("a field number is out of range");
    switch (field.wire) {
      case 0: field.value = varint(); break;
      case 1: field.value = fixed(8); break;
      case 2: field.bytes = take(varint()); break;
      case 5: field.value = fixed(4); break;
      default: malformed("an unknown wire type: " + std::to_string(field.wire));
    }
    return true;
  }

 private:
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) malformed("the file ends inside a field");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    malformed("a number has more than 64 bits");
  }

  uint64_t fixed(size_t size) {
    const std::string_view bytes = take(size);
    return size == 8 ? load64(bytes.data()) : load32(bytes.data());
  }

  std::string_view rest_;
};

void want(const Message::Field& field, int wire) {
  if (field.wire != wire) malformed("field " + std::to_string(field.number) + " has the wrong wire type");
}

float to_float(uint64_t bits) {
  const auto low = static_cast<uint32_t>(bits);
  float value;
  std::memcpy(&value, &low, 4);
  return value;
}

struct File {
  PieceVocab vocab;
  std::string_view charsmap;
  bool unigram = true;
  int64_t bos = 1, eos = 2;
};

void read_piece(std::string_view bytes, PieceVocab& vocab) {
  std::string_view text;
  float score = 0;
  uint64_t type = kNormalPiece;
  Message message(bytes);
  for (Message::Field field; message.next(field);) {
    if (field.number == 1) want(field, 2), text = field.bytes;
    else if (field.number == 2) want(field, 5), score = to_float(field.value);
    else if (field.number == 3) want(field, 0), type = field.value;
  }
  if (type < 1 || type > 6) malformed("a piece has an unknown type: " + std::to_string(type));
  vocab.tokens.push_back(text);
  vocab.scores.push_back(score);
  vocab.types.push_back(static_cast<int32_t>(type));
}

void read_trainer(std::string_view bytes, File& file) {
  Message message(bytes);
  for (Message::Field field; message.next(field);) {
    const auto id = static_cast<int64_t>(static_cast<int32_t>(field.value));
    switch (field.number) {
      case 3:
        want(field, 0);
        if (field.value != 1 && field.value != 2)
          fail(ErrorKind::unsupported, "tokenizer.model", "weft does not support model_type " +
                                           std::to_string(field.value) + ": only unigram (1) and bpe (2)");
        file.unigram = field.value == 1;
        break;
      case 24:
        want(field, 0);
        if (field.value != 0)
          fail(ErrorKind::unsupported, "tokenizer.model", "weft does not support treat_whitespace_as_suffix");
        break;
      case 35: want(field, 0), file.vocab.byte_fallback = field.value != 0; break;
      case 41: want(field, 0), file.bos = id; break;
      case 42: want(field, 0), file.eos = id; break;
      default: break;
    }
  }
}

void read_normaliser(std::string_view bytes, File& file) {
  Message message(bytes);
  for (Message::Field field; message.next(field);) {
    switch (field.number) {
      case 2: want(field, 2), file.charsmap = field.bytes; break;
      case 3: want(field, 0), file.vocab.rules.prefix = field.value != 0; break;
      case 4: want(field, 0), file.vocab.rules.collapse = field.value != 0; break;
      case 5: want(field, 0), file.vocab.rules.escape = field.value != 0; break;
      default: break;
    }
  }
}

File read_file(std::string_view bytes) {
  File file;
  Message message(bytes);
  for (Message::Field field; message.next(field);) {
    if (field.number < 1 || field.number > 3) continue;
    want(field, 2);
    if (field.number == 1) read_piece(field.bytes, file.vocab);
    else if (field.number == 2) read_trainer(field.bytes, file);
    else read_normaliser(field.bytes, file);
    if (static_cast<int64_t>(file.vocab.tokens.size()) > kMaxTokens) malformed("too many pieces");
  }
  if (file.vocab.tokens.empty()) malformed("not a SentencePiece model: it has no pieces");
  return file;
}

// Fills the vocabulary and the added tokens; returns the ids that a text can give by itself.
std::vector<bool> read_pieces(const PieceVocab& source, Parts& parts, Fallback& fallback) {
  std::vector<bool> usable(source.tokens.size());
  for (size_t i = 0; i < source.tokens.size(); ++i) {
    const std::string_view token = source.tokens[i];
    const int32_t type = source.types[i], id = static_cast<int32_t>(i);
    const std::string name = "piece " + std::to_string(i);
    if (utf8::first_malformed(token) != token.size()) fail(ErrorKind::format, source.where, name + " is not UTF-8");
    if (!std::isfinite(source.scores[i])) fail(ErrorKind::format, source.where, name + " has a score that is not finite");
    if (type == kBytePiece && byte_of_token(token) < 0)
      fail(ErrorKind::format, source.where, name + " is of type byte but not written <0x00> to <0xFF>: '" + std::string(token) + "'");
    parts.vocab.add(token, id);
    usable[i] = type == kNormalPiece || type == kUnusedPiece;
    if (type == kUnknownPiece && fallback.unknown == kNone) fallback.unknown = id;
    if (type != kControlPiece && type != kUserPiece && type != kUnknownPiece) continue;
    if (type == kUnknownPiece && source.print_unknown) {
      parts.printed.emplace(id, " \xE2\x81\x87 ");  // U+2047, as SentencePiece prints it
      continue;
    }
    AddedToken added;
    added.content = token;
    added.id = id;
    added.special = type != kUserPiece;
    added.normalized = added.as_written = type == kUserPiece && source.user_in_pieces;
    parts.added.push_back(std::move(added));
  }
  return usable;
}

}  // namespace

void set_piece_parts(const PieceVocab& source, bool unigram, std::string_view charsmap, Parts& parts) {
  Fallback fallback;
  fallback.unknown = source.unknown;
  std::vector<bool> usable = read_pieces(source, parts, fallback);
  fallback.bytes = source.byte_fallback;
  fallback.byte_ids = byte_ids_of(parts.vocab);
  if (unigram) {
    for (size_t i = 0; i < usable.size(); ++i) usable[i] = usable[i] && source.types[i] != kUnusedPiece;
    parts.model = std::make_unique<Unigram>(
        parts.vocab, usable, std::vector<double>(source.scores.begin(), source.scores.end()), fallback);
  } else {
    parts.model = std::make_unique<CharBpe>(parts.vocab, usable, source.scores, fallback);
  }
  PieceRules rules = source.rules;
  if (rules.prefix && source.prefix_everywhere) {
    parts.normaliser.add(prepend_normaliser(" "));
    rules.prefix = false;
  }
  Trie kept;
  for (const AddedToken& token : parts.added)
    if (token.as_written) kept.add(token.content, token.id);
  parts.normaliser.add(piece_normaliser(Charsmap(charsmap), rules, std::move(kept)));
  using Lead = Decoder::Lead;
  parts.decoder.kind = Decoding::pieces;
  parts.decoder.bytes = Decoder::Bytes::each;
  parts.decoder.lead = rules.collapse ? Lead::mark_again : source.rules.prefix ? Lead::mark : Lead::keep;
}

std::unique_ptr<Tokenizer> from_sentencepiece(std::string_view bytes, bool add_bos, bool add_eos) {
  File file = read_file(bytes);
  file.vocab.where = "tokenizer.model";
  file.vocab.print_unknown = true;
  file.vocab.user_in_pieces = true;
  for (const int32_t type : file.vocab.types)
    if (type == kUnusedPiece && !file.unigram)
      fail(ErrorKind::unsupported, "tokenizer.model", "weft does not support unused pieces in a BPE model");
  Parts parts;
  set_piece_parts(file.vocab, file.unigram, file.charsmap, parts);
  const auto id_of = [&](int64_t id, const char* name) {
    if (!parts.vocab.has(id)) malformed(std::string(name) + " is outside the vocabulary: " + std::to_string(id));
    return static_cast<int32_t>(id);
  };
  surround(add_bos ? id_of(file.bos, "bos_id") : kNone, add_eos ? id_of(file.eos, "eos_id") : kNone, parts);
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
