// A program in JSON is refused with an Error, or binds to weights and states or is refused then; the memory of a step is
// known or refused too. The input is the program. Nothing is run: a program that binds is weft's own.
#include <vector>

#include "core/executable.h"
#include "core/json.h"
#include "fuzz/json_edits.h"

using namespace weft;

namespace {

// Reads every value as what it is, and those near the root as what they are not.
void walk(json::Value value, int depth = 0) {
  if (depth < 3) {
    fuzz::accepted([&] { value.boolean(); });
    fuzz::accepted([&] { value.number(); });
    fuzz::accepted([&] { value.at("absent"); });
  }
  if (value.is(json::Type::string)) REQUIRE(utf8::first_malformed(value.string()) == value.string().size());
  if (value.is(json::Type::array))
    for (const json::Value item : value.items()) walk(item, depth + 1);
  if (value.is(json::Type::object))
    for (const auto& [key, item] : value.members()) walk(item, depth + 1);
}

Executable::Weights weights() {
  Executable::Weights all;
  for (const DType dtype : {DType::f32, DType::q8_0}) {
    auto weight = std::make_shared<Weight>();
    weight->dtype = dtype, weight->rows = 4, weight->cols = 32;
    weight->bytes = bytes_of(dtype, 4 * 32);
    weight->owned = Memory(weight->bytes);
    weight->data = weight->owned.data();
    all.emplace(dtype == DType::f32 ? "w" : "q", weight);
  }
  return all;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::as_view(data, size);
  fuzz::accepted([&] { walk(json::parse(text).root()); });
  fuzz::accepted([&] {
    const Executable bound(read_program(text), weights(), {{"kv", std::make_shared<KvState>(DType::f16, 1, 2, 8)}},
                           level_named("scalar"));
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1} << 20})
      fuzz::accepted([&] { bound.arena_bytes({count, count, count}); });
  });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return fuzz::edit_json(data, size, max_size, seed);
}
