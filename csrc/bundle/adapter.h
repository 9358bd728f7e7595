// adapter: a LoRA adapter as one file that `weft export --alone` wrote: safetensors, with the digest of its base in the
// metadata. The file is not trusted: everything but whether a part fits its table, which AdapterTable says, is checked here.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/weight.h"

namespace weft::bundle {

struct Adapter {
  // What it does to one weight (core/state.h: AdapterPart); what is null changes nothing.
  struct Part {
    std::shared_ptr<const Weight> down, up, scale, gain, shift;
  };
  std::string name, digest;  // sha-256 of its tensors
  std::map<std::string, Part, std::less<>> parts;  // by the name of the table
};

// Throws Error(input) for an adapter of another base than the one with the digest `base`.
Adapter read_adapter(std::span<const std::byte> file, std::string_view base);

}  // namespace weft::bundle
