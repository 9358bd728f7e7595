// target: what the fuzz targets share: the entry points, a reader of an input's fields, and the invariants.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace weft::fuzz {

// An invariant of every input. Aborts: fuzzers and sanitizers notice that, and nothing can catch it.
#define REQUIRE(condition)                                                              \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                     \
    }                                                                                   \
  } while (0)

// Whether `work` accepts its input. An Error with printable texts refuses it; anything else ends the process.
template <class Work>
bool accepted(Work&& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    const std::string_view what = error.what();
    REQUIRE(!error.where.empty() && !what.empty() && what.size() <= 1000);
    REQUIRE(utf8::first_malformed(what) == what.size());
    return false;
  }
}

// Cuts an input into fields. Past its end numbers are 0 and texts are empty, so every input is a whole one.
class Fields {
 public:
  Fields(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = text(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  uint8_t byte() { return number<uint8_t>(); }
  std::string_view text(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// `bytes` as text: what is not UTF-8 becomes U+FFFD.
inline std::string as_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const utf8::Step step = utf8::step(bytes.data(), bytes.size());
    if (step.ok) text += bytes.substr(0, step.size);
    else utf8::append(text, utf8::kReplacement);
    bytes.remove_prefix(step.size);
  }
  return text;
}

inline std::string_view as_view(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

}  // namespace weft::fuzz
