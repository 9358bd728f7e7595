// rules: what each op that a bundle may use takes and gives: weft/ops in C++, for programs that nobody has verified.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/program.h"

namespace weft::bundle {

bool same(const Linear& a, const Linear& b);

// Shape and element type.
struct Spec {
  DType dtype;
  std::vector<Linear> shape;

  size_t rank() const { return shape.size(); }
  bool operator==(const Spec& other) const;
};

Spec spec_of(const Value& value);

// One instruction that is being checked: its operands (null where one is absent) and its attributes.
class Site {
 public:
  Site(const Program& program, const Instruction& instruction);

  const Spec* operand(size_t index) const { return index < given_.size() && given_[index] ? &specs_[index] : nullptr; }
  const Spec& at(size_t index) const { return specs_[index]; }  // of one that is not optional
  const Value* value(size_t index) const { return given_[index]; }
  double number(std::string_view name) const;
  int64_t integer(std::string_view name) const { return static_cast<int64_t>(number(name)); }
  bool flag(std::string_view name) const { return number(name) != 0; }
  void need(bool condition, std::string_view what) const;  // throws Error(format) that names the instruction

 private:
  const Program& program_;
  const Instruction& instruction_;
  std::vector<const Value*> given_;
  std::vector<Spec> specs_;
};

// The letters of `operands`, each followed by ? where the operand is optional: a floats, v floats or bfloat16, r rows of int8
// or bfloat16, w a weight, k a key/value state, t a table of adapters; and the inputs of a step that kernels use as indices:
// P positions, S segments, R rows, G pages, D adapters, I what looks up a row (ids, positions or types), Q segments or spans. `attrs` are name:kind:
// f a number, i an integer, b a flag, A an activation or none, K an activation, M a mode of pooling. `in_place` are the
// operands whose memory the first result may have.
struct Rule {
  std::string_view op, operands, attrs, in_place;
  std::vector<Spec> (*results)(const Site& site);
};

const Rule* find_rule(std::string_view op);  // null for an op that a bundle may not use

// Throws Error(format) unless operands and attributes are of the right kinds; then the results' specs.
std::vector<Spec> results_of(const Rule& rule, const Program& program, const Instruction& instruction);

}  // namespace weft::bundle
