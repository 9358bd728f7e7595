// error: the one exception type of the core. The bindings translate its kind to a class of weft/errors.py.
#pragma once
#include <stdexcept>
#include <string>

namespace weft {

enum class ErrorKind { input, too_long, shape, format, unsupported, weight, not_found, memory, backend };

// Messages quote files, and files hold anything: what is not UTF-8 becomes U+FFFD, and a long message is cut.
struct Error : std::runtime_error {
  ErrorKind kind;
  Error(ErrorKind kind, const std::string& message);
};

[[noreturn]] inline void fail(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

}  // namespace weft
