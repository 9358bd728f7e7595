#include "bundle/bundle.h"

#include <algorithm>
#include <unordered_set>

#include "bundle/sha256.h"
#include "core/error.h"
#include "pack/laying.h"
#include "pack/panels.h"
#include "pack/quads.h"

namespace weft::bundle {

namespace {

constexpr size_t kMaxManifest = size_t{64} << 20, kMaxProgram = size_t{64} << 20, kMaxFiles = 4096;

[[noreturn]] void malformed(const std::string& what) { fail(ErrorKind::format, kManifest, what); }

// Names are of files beside the manifest: no folders, nothing hidden.
bool is_plain(std::string_view name) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'; };
  return !name.empty() && name.size() <= 100 && name[0] != '.' && std::all_of(name.begin(), name.end(), fits);
}

size_t as_size(json::Value value, std::string_view what) {
  const int64_t size = value.integer();
  if (size < 0) malformed(std::string(what) + " must not be negative");
  return static_cast<size_t>(size);
}

constexpr const char* kForms[] = {"vector", "rows", "panels", "halves", "pairs", "split", "quads", "equalised"};

void check_buckets(const std::string& name, const Weight& weight, int64_t limit) {
  const auto* values = reinterpret_cast<const float*>(weight.data);
  for (int64_t i = 0; i < weight.cols; ++i)
    if (!(values[i] >= 0 && values[i] < static_cast<float>(limit) && static_cast<float>(static_cast<int64_t>(values[i])) == values[i]))
      fail(ErrorKind::weight, "weights", name + " must be whole numbers from 0 to " + std::to_string(limit - 1));
}

}  // namespace

Bundle::Bundle(std::unique_ptr<Files> files, bool check_digests, bool with_weights)
    : files_(std::move(files)), text_(files_->open(kManifest)), manifest_([this] {
        if (text_.bytes.size() > kMaxManifest) malformed("is larger than a manifest can be");
        return json::Document(text_.text(), kManifest);
      }()) {
  const json::Value root = manifest_.root();
  const int64_t version = root.at("weft_bundle").integer();
  if (version != kVersion)
    fail(ErrorKind::unsupported, kManifest, "version " + std::to_string(version) + " of bundles; this library reads version " + std::to_string(kVersion) + "; export the model again");
  digest_ = sha256(text_.bytes);
  const json::Value listed = root.at("files");
  if (listed.size() > kMaxFiles) malformed("lists more files than a bundle can have");
  std::unordered_set<std::string_view> elsewhere;  // files that this host does not need
  if (!with_weights)
    for (const json::Value entry : root.at("weights").items()) elsewhere.insert(entry.at("file").string());
  for (const auto& [name, about] : listed.members()) {
    if (!is_plain(name)) malformed("lists a file that cannot be: " + std::string(name));
    if (about.find("for") || elsewhere.contains(name)) continue;
    Blob blob = files_->open(std::string(name));
    if (blob.bytes.size() != as_size(about.at("bytes"), "bytes")) fail(ErrorKind::format, name, "has " + std::to_string(blob.bytes.size()) + " bytes, the manifest says " + std::to_string(about.at("bytes").integer()));
    if (check_digests && sha256(blob.bytes) != about.at("sha256").string()) fail(ErrorKind::format, name, "is damaged: its sha-256 is not that of the manifest");
    opened_.emplace(name, std::move(blob));
  }
  if (!with_weights) return;
  for (const json::Value entry : root.at("weights").items())
    if (!tensors_.emplace(entry.at("name").string(), tensor_of(entry)).second) malformed("has two weights called " + std::string(entry.at("name").string()));
}

Blob Bundle::file(std::string_view name) const {
  const auto found = opened_.find(std::string(name));
  if (found == opened_.end()) malformed("does not list the file " + std::string(name));
  return found->second;
}

// The bytes of {"file", "offset", "bytes"}.
std::span<const std::byte> Bundle::part(json::Value range, std::string_view what) const {
  const std::span<const std::byte> whole = file(range.at("file").string()).bytes;
  const size_t offset = as_size(range.at("offset"), "offset"), bytes = as_size(range.at("bytes"), "bytes");
  if (offset > whole.size() || bytes > whole.size() - offset) malformed(std::string(what) + " lies outside its file");
  return whole.subspan(offset, bytes);
}

Tensor Bundle::tensor_of(json::Value entry) const {
  const std::string_view name = entry.at("name").string();
  Tensor tensor{dtype_named(entry.at("dtype").string()), {}, part(entry, name)};
  if (info(tensor.dtype).block > 1 && !has_panels(tensor.dtype))
    fail(ErrorKind::unsupported, "bundle", std::string(name) + " is " + std::string(info(tensor.dtype).name) + ", for which this build has no kernels; export a file of another type");
  if (reinterpret_cast<size_t>(tensor.bytes.data()) % 16) malformed(std::string(name) + " must begin at a multiple of 16 bytes");
  for (const json::Value size : entry.at("shape").items()) {
    if (tensor.shape.size() == 4 || size.integer() < 1) malformed(std::string(name) + " must have 1 to 4 axes of at least 1");
    tensor.shape.push_back(size.integer());
  }
  if (tensor.shape.empty()) malformed(std::string(name) + " must have 1 to 4 axes of at least 1");
  return tensor;
}

// A weight as the kernels read it; of matrices `packing` writes the memory later.
std::shared_ptr<const Weight> Bundle::lay(const std::string& name, const Tensor& tensor, Form form, Arena& arena, Packing& packing) const {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < tensor.shape.size(); ++d)
    if (__builtin_mul_overflow(rows, tensor.shape[d], &rows)) malformed(name + " has more rows than there are numbers");
  const int64_t cols = tensor.shape.back();
  check_weight_size(tensor.dtype, rows, cols, tensor.bytes.size());
  if (form == Form::vector) {
    if (rows != 1) fail(ErrorKind::weight, "weights", name + " must be a vector");
    return widened_vector(tensor.dtype, cols, tensor.bytes.data(), nullptr, false, &arena);
  }
  if (form == Form::rows) {
    auto weight = std::make_shared<Weight>();
    weight->dtype = tensor.dtype, weight->rows = rows, weight->cols = cols;
    weight->data = tensor.bytes.data(), weight->bytes = tensor.bytes.size();
    return weight;
  }
  const PackPart pack = packer_named(kForms[static_cast<size_t>(form)]);
  auto weight = std::make_shared<Weight>(packed_like(pack, tensor.dtype, rows, cols));
  std::byte* out = allocate_weight(*weight, &arena);
  if (form == Form::quads || form == Form::equalised) write_factors(tensor.dtype, tensor.bytes.data(), row_bytes(tensor.dtype, cols), rows, cols, form == Form::equalised, out);
  packing.add({pack, tensor.dtype, tensor.bytes.data(), row_bytes(tensor.dtype, cols), nullptr, rows, cols, out});
  return weight;
}

Bound Bundle::outline(std::string_view name) const {
  const Blob text = file(manifest().at("programs").at(name).string());
  if (text.bytes.size() > kMaxProgram) malformed("names a program that is larger than one can be");
  Bound bound{read_program(text.text()), {}, {}};
  bound.limits = verify(bound.program);
  return bound;
}

Bound Bundle::bind(std::string_view name, int threads) const {
  Bound bound = outline(name);
  Arena arena;
  Packing packing(threads);
  for (size_t i = 0; i < bound.program.values.size(); ++i) {
    const Value& value = bound.program.values[i];
    if (value.kind != ValueKind::weight) continue;
    const auto found = tensors_.find(value.name);
    if (found == tensors_.end()) fail(ErrorKind::weight, "weights", value.name + " is missing");
    const Form form = bound.limits.forms[i];
    std::weak_ptr<const Weight>& kept = bound_[{value.name, form}];
    std::shared_ptr<const Weight> weight = kept.lock();
    if (!weight) kept = weight = lay(value.name, found->second, form, arena, packing);
    if (bound.limits.buckets[i]) check_buckets(value.name, *weight, bound.limits.buckets[i]);
    bound.weights.emplace(value.name, std::move(weight));
  }
  packing.start();
  packing.finish();
  return bound;
}

}  // namespace weft::bundle
