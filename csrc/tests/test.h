// test: a small harness. TEST(name) { CHECK(...); } anywhere in csrc/tests; main runs them all, or those whose name
// contains the first argument.
#pragma once
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "core/levels.h"

namespace weft::test {

struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int failures = 0;
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

#define TEST(name)                                                  \
  static void name();                                               \
  static ::weft::test::Register register_##name(#name, name);       \
  static void name()
#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition);              \
      ++::weft::test::failures;                                                              \
    }                                                                                        \
  } while (0)

// Runs one kernel with a team of `workers`.
void run_kernel(const Level& level, const char* op, const std::vector<Operand>& in, const std::vector<Operand>& out,
                const std::vector<Attr>& attrs, int workers = 1);

}  // namespace weft::test
