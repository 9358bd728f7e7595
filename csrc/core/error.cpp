#include "core/error.h"

#include "core/utf8.h"

namespace weft {

namespace {

constexpr size_t kLongestMessage = 800;

std::string printable(std::string_view message) {
  std::string out;
  while (!message.empty() && out.size() < kLongestMessage) {
    const utf8::Step step = utf8::step(message.data(), message.size());
    if (step.ok) out += message.substr(0, step.size);
    else utf8::append(out, utf8::kReplacement);
    message.remove_prefix(step.size);
  }
  return message.empty() ? out : out.append(" ...");
}

}  // namespace

Error::Error(ErrorKind kind, const std::string& message) : std::runtime_error(printable(message)), kind(kind) {}

}  // namespace weft
