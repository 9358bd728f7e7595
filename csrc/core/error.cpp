#include "core/error.h"

#include "core/utf8.h"

namespace weft {

namespace {

constexpr size_t kLongest = 800;

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty() && out.size() < kLongest) {
    const utf8::Step step = utf8::step(text.data(), text.size());
    if (step.ok) out += text.substr(0, step.size);
    else utf8::append(out, utf8::kReplacement);
    text.remove_prefix(step.size);
  }
  return text.empty() ? out : out.append(" ...");
}

}  // namespace

Error::Error(ErrorKind kind, std::string_view where, std::string_view what)
    : std::runtime_error(printable(what)), kind(kind), where(printable(where)) {}

}  // namespace weft
