// adapters: LoRA adapters that a host loads beside a model and chooses for each call. Those of one model share the tables of its
// second program, which is bound when the first adapter comes; the model alone runs its own program, with its own bits.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "bundle/adapter.h"
#include "bundle/bundle.h"
#include "capi/runner.h"
#include "core/state.h"

namespace weft::host {

// The tables of a model, and which of their indices are taken.
struct AdapterRoom {
  Executable::Tables tables;
  std::mutex turn;
  std::array<bool, kAdapters> taken{};
  uint64_t loaded = 0;
};

// An adapter in the tables, until nobody holds it: the host's handle, or a call that runs.
class LoadedAdapter {
 public:
  // Throws Error(weight) where a part does not fit the model, and Error(input) where too many are loaded.
  LoadedAdapter(std::shared_ptr<AdapterRoom> room, bundle::Adapter adapter);
  ~LoadedAdapter();
  LoadedAdapter(const LoadedAdapter&) = delete;
  LoadedAdapter& operator=(const LoadedAdapter&) = delete;

  const std::string& info() const { return info_; }  // JSON
  const AdapterRoom* room() const { return room_.get(); }
  int32_t index() const { return index_; }
  uint64_t number() const { return number_; }  // never given twice for one model, and never 0

 private:
  std::shared_ptr<AdapterRoom> room_;
  int32_t index_ = 0;
  uint64_t number_ = 0;
  std::string info_;
};

using Held = std::shared_ptr<const LoadedAdapter>;

// A model's runner, and the one for calls with an adapter.
class Adapters {
 public:
  // `program` is the name of the program with adapters. `plain` outlives this.
  Adapters(const bundle::Bundle& bundle, Runner& plain, std::string_view program) : bundle_(bundle), plain_(plain), program_(program) {}

  bool can() const;
  Held load(std::span<const std::byte> file);
  // The one for this adapter, or where it is null for the model alone. Throws Error(input) for an adapter of another model.
  Runner& runner(const Held& adapter) const;

 private:
  const bundle::Bundle& bundle_;
  Runner& plain_;
  std::string program_;
  std::unique_ptr<Runner> adapted_;
  std::shared_ptr<AdapterRoom> room_;
};

}  // namespace weft::host
