// program: a traced model as data, read from its JSON form (docs/design/core.md). Nothing here runs anything.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace weft {

// The symbols: T tokens, B sequences, L rows whose results are wanted.
struct Sizes {
  int64_t t = 0, b = 0, l = 0;
};

// A linear form of the symbols.
struct Linear {
  int64_t t = 0, b = 0, l = 0, constant = 0;
  int64_t at(const Sizes& s) const { return t * s.t + b * s.b + l * s.l + constant; }
  bool fixed() const { return !t && !b && !l; }
};

// A state is one of three kinds: paged keys and values [heads, dim], a recurrent state of any shape, or the inputs that a
// causal convolution [channels, width] has yet to see again.
enum class ValueKind : uint8_t { input, weight, kv, recurrent, conv, table, buffer, output };

constexpr bool is_state(ValueKind kind) {
  return kind == ValueKind::kv || kind == ValueKind::recurrent || kind == ValueKind::conv;
}

struct Value {
  std::string name;
  ValueKind kind;
  DType dtype;
  int rank;
  std::array<Linear, 4> shape;
  int slot = -1;  // buffers only
};

struct NamedNumber {
  std::string name;
  double value;
};

struct Instruction {
  std::string op;
  std::vector<int> in;  // indices of values; -1 for an absent optional operand
  std::vector<int> out;
  std::vector<NamedNumber> attrs;
};

struct Program {
  std::string name;
  std::vector<Value> values;
  std::vector<Linear> slots;  // bytes
  std::vector<Instruction> body;

  int index_of(std::string_view value) const;  // throws Error(format) for an unknown name
};

Program read_program(std::string_view json);

}  // namespace weft
