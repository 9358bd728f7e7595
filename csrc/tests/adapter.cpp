// Tensors of an adapter that do not lie in its file are refused; those that do get one memory of their size.
#include "bundle/adapter.h"

#include <cstring>

#include "bundle/sha256.h"
#include "core/error.h"
#include "tests/test.h"

using namespace weft;

namespace {

constexpr size_t kBytes = 64;  // of tensors

std::string file_with(const std::string& tensors) {
  const std::string data(kBytes, '\0');
  const std::string digest = bundle::sha256(std::as_bytes(std::span(data)));
  const std::string header = "{\"__metadata__\": {\"weft_adapter\": \"1\", \"base\": \"b\", \"sha256\": \"" + digest + "\"}, " + tensors + "}";
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + data;
}

bundle::Adapter read(const std::string& tensors) {
  const std::string file = file_with(tensors);
  return bundle::read_adapter(std::as_bytes(std::span(file)), "b");
}

}  // namespace

TEST(adapters_whose_tensors_lie_nowhere_are_refused) {
  for (const char* offsets : {"[0, 65]", "[-4, 60]", "[4, 68]", "[64, 0]", "[4, -9223372036854775808]", "[9223372036854775807, -9223372036854775808]", "[0]", "{}"}) {
    bool refused = false;
    try {
      read(std::string("\"t.down\": {\"dtype\": \"F32\", \"shape\": [4, 4], \"data_offsets\": ") + offsets + "}");
    } catch (const Error& error) {
      refused = error.kind == ErrorKind::format;
    }
    CHECK(refused);
  }
}

TEST(adapters_have_the_memory_of_their_weights) {
  const bundle::Adapter adapter = read(
      "\"t.down\": {\"dtype\": \"F16\", \"shape\": [1, 8], \"data_offsets\": [0, 16]}, "
      "\"t.up\": {\"dtype\": \"F16\", \"shape\": [9, 1], \"data_offsets\": [16, 34]}, "
      "\"t.scale\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [36, 40]}");
  const bundle::Adapter::Part& part = adapter.parts.at("t");
  CHECK(part.down->bytes == 256 && part.up->bytes == 32 && part.scale->bytes == 4);
  CHECK(part.up->data == part.down->data + 256 && part.scale->data == part.up->data + 64);
  for (const auto& weight : {part.down, part.up, part.scale}) CHECK(reinterpret_cast<size_t>(weight->data) % 64 == 0);
  CHECK(!part.gain && !part.shift && read("\"u.shift\": {\"dtype\": \"F32\", \"shape\": [16], \"data_offsets\": [0, 64]}").parts.contains("u"));
}
