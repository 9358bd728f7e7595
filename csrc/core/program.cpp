#include "core/program.h"

#include <charconv>
#include <unordered_map>

#include "core/error.h"
#include "core/json.h"
#include "core/words.h"

namespace weft {

namespace {

[[noreturn]] void malformed(const std::string& what) { fail(ErrorKind::format, "program", what); }

constexpr int64_t kMaxSize = int64_t{1} << 40;  // of a factor or a constant: sums over a step's tokens stay in 64 bits

int64_t in_range(int64_t size) {
  if (size < -kMaxSize || size > kMaxSize) malformed("a size is out of range: " + std::to_string(size));
  return size;
}

Linear in_range(const Linear& form) {
  return {in_range(form.t), in_range(form.b), in_range(form.l), in_range(form.constant)};
}

int64_t read_integer(std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) malformed("not a size: " + std::string(text));
  return in_range(value);
}

// "T", "B+1", "2*T", "2*T+L+3"
Linear read_linear(std::string_view text) {
  Linear form;
  while (!text.empty()) {
    size_t plus = text.find('+');
    std::string_view term = text.substr(0, plus);
    text = plus == std::string_view::npos ? std::string_view() : text.substr(plus + 1);
    int64_t factor = 1;
    if (size_t star = term.find('*'); star != std::string_view::npos) {
      factor = read_integer(term.substr(0, star));
      term = term.substr(star + 1);
    }
    if (term == "T") form.t += factor;
    else if (term == "B") form.b += factor;
    else if (term == "L") form.l += factor;
    else if (factor == 1) form.constant += read_integer(term);
    else malformed("not a size: unknown symbol " + std::string(term));
  }
  return in_range(form);
}

Linear read_size(json::Value value) {
  if (value.is(json::Type::string)) return read_linear(value.string());
  return Linear{0, 0, 0, in_range(value.integer())};
}

ValueKind read_kind(std::string_view word) {
  if (word == "input") return ValueKind::input;
  if (word == "weight") return ValueKind::weight;
  if (word == "kv") return ValueKind::kv;
  if (word == "recurrent") return ValueKind::recurrent;
  if (word == "conv") return ValueKind::conv;
  if (word == "table") return ValueKind::table;
  if (word == "buffer") return ValueKind::buffer;
  if (word == "output") return ValueKind::output;
  malformed("unknown kind of value: " + std::string(word));
}

Value read_value(json::Value item, size_t slots) {
  Value value{std::string(item.at("name").string()), read_kind(item.at("kind").string()),
              dtype_named(item.at("dtype").string()), 0, {}, -1};
  for (json::Value size : item.at("shape").items()) {
    if (value.rank == 4) malformed(value.name + " has more than four dimensions");
    value.shape[static_cast<size_t>(value.rank++)] = read_size(size);
  }
  if (value.kind == ValueKind::buffer) {
    int64_t slot = item.at("slot").integer();
    if (slot < 0 || static_cast<size_t>(slot) >= slots) malformed(value.name + " has no slot " + std::to_string(slot));
    value.slot = static_cast<int>(slot);
  }
  return value;
}

Linear read_slot(json::Value item) {
  return in_range({item.integer_or("T", 0), item.integer_or("B", 0), item.integer_or("L", 0), item.integer_or("const", 0)});
}

// What the numbers of a product are rounded to; kernels/narrow_blocks.h has the same list.
constexpr const char* kNarrows[] = {"f16", "bf16"};

double read_word(std::string_view word) {
  for (size_t i = 0; i < std::size(kActivations); ++i)
    if (word == kActivations[i]) return static_cast<double>(i);
  for (size_t i = 0; i < std::size(kPoolModes); ++i)
    if (word == kPoolModes[i]) return static_cast<double>(i);
  for (size_t i = 0; i < std::size(kNarrows); ++i)
    if (word == kNarrows[i]) return static_cast<double>(i);
  malformed("unknown word in an attribute: " + std::string(word));
}

Instruction read_instruction(json::Value item, const std::unordered_map<std::string_view, int>& names) {
  Instruction instruction;
  instruction.op = item.at("op").string();
  auto lookup = [&](json::Value name) {
    if (name.is_null()) return -1;
    auto found = names.find(name.string());
    if (found == names.end()) malformed(instruction.op + " uses an unknown value: " + std::string(name.string()));
    return found->second;
  };
  for (json::Value name : item.at("in").items()) instruction.in.push_back(lookup(name));
  for (json::Value name : item.at("out").items()) instruction.out.push_back(lookup(name));
  if (json::Value attrs = item.find("attrs"))
    for (auto [name, value] : attrs.members()) {
      if (value.is(json::Type::array)) continue;  // reshape's shape: the output's shape says it
      double number = value.is(json::Type::string)    ? read_word(value.string())
                      : value.is(json::Type::boolean) ? static_cast<double>(value.boolean())
                                                      : value.number();
      instruction.attrs.push_back({std::string(name), number});
    }
  return instruction;
}

}  // namespace

int Program::index_of(std::string_view value) const {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].name == value) return static_cast<int>(i);
  malformed("no value called " + std::string(value));
}

Program read_program(std::string_view text) {
  json::Document document(text, "program");
  json::Value root = document.root();
  if (root.at("weft").integer() != 1) malformed("version " + std::to_string(root.at("weft").integer()) + " is not supported; this build reads version 1");
  Program program;
  program.name = root.at("name").string();
  for (json::Value slot : root.at("slots").items()) program.slots.push_back(read_slot(slot));
  for (json::Value value : root.at("values").items()) program.values.push_back(read_value(value, program.slots.size()));
  std::unordered_map<std::string_view, int> names;
  for (size_t i = 0; i < program.values.size(); ++i)
    if (!names.emplace(program.values[i].name, static_cast<int>(i)).second)
      malformed("two values are called " + program.values[i].name);
  for (json::Value item : root.at("body").items()) program.body.push_back(read_instruction(item, names));
  return program;
}

}  // namespace weft
