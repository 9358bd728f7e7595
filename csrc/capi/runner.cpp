#include "capi/runner.h"

#include <algorithm>

#include "core/error.h"

namespace weft::host {

namespace {

// What a step may take at most: far more than any real program, and less than makes the system kill the process.
constexpr uint64_t kMaxWork = std::min<uint64_t>(uint64_t{8} << 30, SIZE_MAX / 2);
constexpr int64_t kMaxStates = static_cast<int64_t>(std::min<uint64_t>(uint64_t{1} << 38, SIZE_MAX / 2));

void allocate_output(OutputArray& output) {
  size_t count = 1;
  for (const int64_t size : output.shape) count *= static_cast<size_t>(size);
  output.data = reinterpret_cast<std::byte*>(new float[std::max<size_t>(count, 1)]);
}

// Outputs that are freed whatever happens.
struct Outputs {
  std::vector<OutputArray> all;
  ~Outputs() {
    for (const OutputArray& one : all) delete[] reinterpret_cast<float*>(one.data);
  }
};

}  // namespace

Runner::Runner(const bundle::Bundle& bundle, std::string_view name, const Level& level, Pool& pool, int64_t tokens, bool here)
    : level_(level), pool_(pool), tokens_(tokens), here_(here) {
  bundle::Bound bound = here ? bundle.bind(name, pool.size()) : bundle.outline(name);
  program_ = std::move(bound.program);
  limits_ = std::move(bound.limits);
  weights_ = std::move(bound.weights);
}

void Runner::start(int64_t pages) {
  std::vector<std::shared_ptr<KvState>> layers;
  if (page_bytes() && (pages < 1 || pages > kMaxStates / page_bytes())) fail(ErrorKind::memory, "state", std::to_string(pages) + " pages of keys and values are too many");
  for (const Value& value : program_.values) {
    if (value.kind != ValueKind::kv) continue;
    layers.push_back(std::make_shared<KvState>(value.dtype, pages, value.shape[0].constant, value.shape[1].constant, false));
    states_.emplace(value.name, layers.back());
  }
  if (!layers.empty()) join_states(layers);
  bind();
}

void Runner::bind() {
  executable_ = std::make_unique<Executable>(program_, weights_, states_, level_, tables_);
  if (executable_->arena_bytes({tokens_, tokens_, tokens_}) > kMaxWork) fail(ErrorKind::format, "program " + program_.name, "wants more memory for a step than any model needs");
}

std::unique_ptr<Runner> Runner::beside(const bundle::Bundle& bundle, std::string_view name) const {
  auto other = std::make_unique<Runner>(bundle, name, level_, pool_, tokens_, true);
  const bundle::Limits& own = other->limits_;
  bool fits = own.ids >= limits_.ids && own.positions >= limits_.positions && own.types >= limits_.types && own.pages == limits_.pages;
  for (const Value& value : program_.values)
    if (value.kind == ValueKind::output) fits = fits && other->columns(value.name, true) == columns(value.name, true);
  for (const Value& value : other->program_.values) {
    if (value.kind == ValueKind::table) other->tables_.emplace(value.name, std::make_shared<AdapterTable>(value.shape[0].constant, value.shape[1].constant));
    if (value.kind == ValueKind::kv) fits = fits && states_.contains(value.name);
  }
  if (!fits) fail(ErrorKind::format, "program " + std::string(name), "is not one for the steps of this model");
  other->states_ = states_;
  other->bind();
  return other;
}

int64_t Runner::page_bytes() const {
  int64_t bytes = 0;
  for (const Value& value : program_.values) {
    if (value.kind != ValueKind::kv) continue;
    const int64_t heads = value.shape[0].constant, dim = value.shape[1].constant;
    if (heads < 1 || dim < 1 || heads > 65536 || dim > 65536) fail(ErrorKind::format, "program " + program_.name, value.name + " is not a state that a model has");
    bytes += 2 * kPage * heads * (dim * info(value.dtype).bytes + 4);
  }
  return bytes;
}

bool Runner::reads(std::string_view input) const {
  return std::any_of(program_.values.begin(), program_.values.end(), [&](const Value& value) { return value.kind == ValueKind::input && value.name == input; });
}

int64_t Runner::columns(std::string_view output, bool of_sequences_too) const {
  const Value& value = program_.values[static_cast<size_t>(program_.index_of(output))];
  const Linear& rows = value.shape[0];
  const bool asked = rows.l == 1 && !rows.t && !rows.b && !rows.constant, sequences = rows.b == 1 && !rows.t && !rows.l && !rows.constant;
  if (value.kind != ValueKind::output || value.rank != 2 || !value.shape[1].fixed() || !(asked || (sequences && of_sequences_too)))
    fail(ErrorKind::format, "program " + program_.name, std::string(output) + " is not an output of such a model");
  return value.shape[1].constant;
}

std::vector<float> Runner::run(const Step& step, std::string_view output) {
  struct Named {
    std::string_view name;
    const std::vector<int32_t>& values;
  };
  const Named all[] = {{"ids", step.ids}, {"positions", step.positions}, {"segments", step.segments}, {"rows", step.rows},
                       {"types", step.types}, {"spans", step.spans}, {"pages", step.pages}, {"adapters", step.adapters}};
  std::vector<InputArray> inputs;
  int64_t shapes[std::size(all)][2];
  for (size_t i = 0; i < std::size(all); ++i) {
    const auto size = static_cast<int64_t>(all[i].values.size());
    const bool pages = all[i].name == "pages";
    shapes[i][0] = pages && step.page_width ? size / step.page_width : size;
    shapes[i][1] = step.page_width;
    inputs.push_back({all[i].name, DType::i32, {shapes[i], pages ? 2u : 1u}, reinterpret_cast<const std::byte*>(all[i].values.data())});
  }
  Outputs outputs;
  executable_->run(inputs, outputs.all, allocate_output, pool_);
  for (const OutputArray& one : outputs.all)
    if (one.name == output) {
      const auto* data = reinterpret_cast<const float*>(one.data);
      return {data, data + one.shape[0] * one.shape[1]};
    }
  fail(ErrorKind::format, "program " + program_.name, "has no output " + std::string(output));
}

}  // namespace weft::host
