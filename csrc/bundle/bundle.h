// bundle: a model as files that any host runs: a manifest, planned programs, weights in shards, the tokenizer. The files are
// not trusted: sizes, digests and programs are checked when they are read. docs/design/bundle.md says what is in them.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bundle/files.h"
#include "bundle/verify.h"
#include "core/executable.h"
#include "core/json.h"
#include "pack/packing.h"
#include "text/tokenizer.h"

namespace weft::bundle {

inline constexpr int64_t kVersion = 1;
inline constexpr char kManifest[] = "manifest.json";

// A tensor as a shard holds it: rows in the order of the program, quantised ones as whole blocks.
struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

struct Bound {
  Program program;
  Limits limits;
  Executable::Weights weights;
};

class Bundle {
 public:
  // `check_digests` false trusts that the files are whole; what is in them is checked in any case. Without weights the files
  // that have them are not opened: nothing can be bound then.
  explicit Bundle(std::unique_ptr<Files> files, bool check_digests = true, bool with_weights = true);

  json::Value manifest() const { return manifest_.root(); }
  const std::string& digest() const { return digest_; }  // of the manifest, and so of everything

  // The program of this name, verified, with its weights packed by `threads` threads. Those that another program has are shared
  // with it, where it is still bound and reads them in the same form. The outline has none.
  Bound bind(std::string_view name, int threads) const;
  Bound outline(std::string_view name) const;
  std::unique_ptr<text::Tokenizer> tokenizer() const;  // null where the bundle has none
  Blob file(std::string_view name) const;              // one that the manifest lists

 private:
  Tensor tensor_of(json::Value entry) const;
  std::span<const std::byte> part(json::Value range, std::string_view what) const;
  std::shared_ptr<const Weight> lay(const std::string& name, const Tensor& tensor, Form form, Arena& arena, Packing& packing) const;

  std::unique_ptr<Files> files_;
  Blob text_;
  json::Document manifest_;
  std::string digest_;
  std::unordered_map<std::string, Blob> opened_;
  std::unordered_map<std::string, Tensor> tensors_;
  mutable std::map<std::pair<std::string, Form>, std::weak_ptr<const Weight>> bound_;
};

}  // namespace weft::bundle
