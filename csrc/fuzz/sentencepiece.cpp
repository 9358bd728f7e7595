// A SentencePiece model is refused with an Error, or gives a tokenizer that encodes and decodes. The input is the file,
// a protobuf message; mutations work on its fields, so that lengths stay right.
#include <random>
#include <vector>

#include "fuzz/tokenizing.h"

using namespace weft;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file = fuzz::as_view(data, size);
  std::unique_ptr<text::Tokenizer> tokenizer;
  const bool surrounded = size % 2 == 0;
  if (fuzz::accepted([&] { tokenizer = text::from_sentencepiece(file, surrounded, surrounded); }))
    fuzz::check_tokenizer(*tokenizer, file);
  return 0;
}

namespace {

uint64_t take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest[0]);
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) break;
  }
  return value;
}

void put_varint(uint64_t value, std::string& out) {
  for (; value > 127; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}

struct Field {
  uint64_t tag;
  std::string bytes;  // the payload; of a number its bytes as written
};

// The fields of a message, as many as can be made out.
std::vector<Field> fields_of(std::string_view rest) {
  std::vector<Field> fields;
  while (!rest.empty()) {
    const uint64_t tag = take_varint(rest);
    const std::string_view before = rest;
    size_t size = 4;
    if ((tag & 7) == 0) take_varint(rest), size = before.size() - rest.size(), rest = before;
    else if ((tag & 7) == 1) size = 8;
    else if ((tag & 7) == 2) size = take_varint(rest);
    fields.push_back({tag, std::string(rest.substr(0, size))});
    rest.remove_prefix(std::min(size, rest.size()));
  }
  return fields;
}

std::string message_of(const std::vector<Field>& fields) {
  std::string out;
  for (const Field& field : fields) {
    put_varint(field.tag, out);
    if ((field.tag & 7) == 2) put_varint(field.bytes.size(), out);
    out += field.bytes;
  }
  return out;
}

std::string mutated(std::string bytes) {
  const size_t before = bytes.size();
  bytes.resize(before + 32);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), before, bytes.size()));
  return bytes;
}

std::string edited(std::string_view message, std::minstd_rand& random, int depth) {
  std::vector<Field> fields = fields_of(message);
  if (fields.empty()) return mutated(std::string(message));
  const size_t at = random() % fields.size(), other = random() % fields.size();
  switch (random() % 8) {
    case 0: fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1: fields.push_back(fields[at]); break;
    case 2: std::swap(fields[at], fields[other]); break;
    case 3: fields[at].bytes = fields[other].bytes; break;
    case 4: fields[at].tag = (random() % 50 << 3) | (random() % 4 ? fields[at].tag & 7 : random() % 6); break;
    default:
      if (depth > 0 && (fields[at].tag & 7) == 2) fields[at].bytes = edited(fields[at].bytes, random, depth - 1);
      else fields[at].bytes = mutated(fields[at].bytes);
  }
  return message_of(fields);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string file = edited(fuzz::as_view(data, size), random, 1);
  if (file.empty() || file.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, file.data(), file.size());
  return file.size();
}
