// error: the one exception type of the core. The bindings translate its kind to a class of weft/errors.py.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

namespace weft {

enum class ErrorKind { input, too_long, shape, format, unsupported, weight, not_found, memory, backend };

// `where` names the part or the file at fault, what() says what is wrong; Python renders them as "[where] what".
// what() may quote files, and files hold anything: malformed UTF-8 becomes U+FFFD, and a long sentence is cut.
struct Error : std::runtime_error {
  ErrorKind kind;
  std::string where;
  Error(ErrorKind kind, std::string_view where, std::string_view what);
};

[[noreturn]] inline void fail(ErrorKind kind, std::string_view where, std::string_view what) {
  throw Error(kind, where, what);
}

}  // namespace weft
