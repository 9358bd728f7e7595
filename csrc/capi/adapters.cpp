#include "capi/adapters.h"

#include <algorithm>

#include "capi/json_string.h"
#include "core/error.h"

namespace weft::host {

namespace {

int64_t rank_of(const bundle::Adapter& adapter) {
  int64_t rank = 0;
  for (const auto& [table, part] : adapter.parts) rank = std::max(rank, part.down ? part.down->rows : 0);
  return rank;
}

}  // namespace

LoadedAdapter::LoadedAdapter(std::shared_ptr<AdapterRoom> room, bundle::Adapter adapter) : room_(std::move(room)) {
  info_ = "{\"name\": " + json_string(adapter.name) + ", \"rank\": " + std::to_string(rank_of(adapter)) + ", \"sha256\": " + json_string(adapter.digest) + "}";
  const std::lock_guard lock(room_->turn);
  const auto free = std::find(room_->taken.begin() + 1, room_->taken.end(), false);
  if (free == room_->taken.end()) fail(ErrorKind::input, "adapter", std::to_string(kAdapters - 1) + " adapters are loaded, the most there can be; free one first");
  const auto index = static_cast<int32_t>(free - room_->taken.begin());
  try {
    for (auto& [name, part] : adapter.parts) {
      const auto table = room_->tables.find(name);
      if (table == room_->tables.end()) fail(ErrorKind::weight, "adapter", "the model has no weight for " + name);
      try {
        table->second->put(index, std::move(part.down), std::move(part.up), std::move(part.scale), std::move(part.gain), std::move(part.shift));
      } catch (const Error& error) {
        fail(error.kind, "adapter", name + ": " + error.what());
      }
    }
  } catch (...) {
    for (const auto& [name, table] : room_->tables) table->clear(index);
    throw;
  }
  index_ = index;
  room_->taken[static_cast<size_t>(index)] = true;
  number_ = ++room_->loaded;
}

LoadedAdapter::~LoadedAdapter() {
  const std::lock_guard lock(room_->turn);
  for (const auto& [name, table] : room_->tables) table->clear(index_);
  room_->taken[static_cast<size_t>(index_)] = false;
}

bool Adapters::can() const { return plain_.here() && bundle_.manifest().find("adapters"); }

Held Adapters::load(std::span<const std::byte> file) {
  if (!plain_.here()) fail(ErrorKind::unsupported, "adapter", "the host computes the steps of this model, which are those without adapters; open it without step_tokens");
  if (!can()) fail(ErrorKind::unsupported, "adapter", "this bundle has no room for adapters; export the model with --adapters");
  bundle::Adapter adapter = bundle::read_adapter(file, bundle_.manifest().at("adapters").at("base").string());
  if (!adapted_) {
    auto room = std::make_shared<AdapterRoom>();
    auto adapted = plain_.beside(bundle_, program_);
    room->tables = adapted->tables();
    adapted_ = std::move(adapted), room_ = std::move(room);
  }
  return std::make_shared<const LoadedAdapter>(room_, std::move(adapter));
}

Runner& Adapters::runner(const Held& adapter) const {
  if (!adapter) return plain_;
  if (adapter->room() != room_.get()) fail(ErrorKind::input, "adapter", "this adapter was loaded for another model; load it for this one");
  return *adapted_;
}

}  // namespace weft::host
