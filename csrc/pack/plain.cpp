#include "pack/plain.h"

#include <string>

#include "core/error.h"
#include "core/half.h"
#include "pack/spread.h"

namespace weft {

void spread(DType dtype, const std::byte* block, Plain& plain) {
  switch (dtype) {
#define WEFT_SPREAD(type) \
  case DType::type: return spread_bytes<DType::type>(block, plain);
    WEFT_PACKED_TYPES(WEFT_SPREAD)
#undef WEFT_SPREAD
    default: fail(ErrorKind::unsupported, "pack", "not a packed type: " + std::string(info(dtype).name));
  }
}

float scale_of(const Format& format, const Plain& plain) {
  return (format.powers() ? bf16_to_float(plain.d) : half_to_float(plain.d)) / static_cast<float>(format.parts);
}

void values(const Format& format, const Plain& plain, float* out) {
  const float d = scale_of(format, plain), stored = half_to_float(plain.m);
  const float m = format.zeros() ? 0.0f - d * stored : stored;
  const int subs = format.subs ? format.subs : 1, width = format.block / subs;
  for (int j = 0; j < subs; ++j) {
    const int integer = format.signed_subs ? static_cast<int8_t>(plain.scale[j]) : plain.scale[j];
    const float scale = format.subs ? d * static_cast<float>(integer) : d;
    const float min = format.subs ? m * static_cast<float>(plain.min[j]) : m;
    for (int i = j * width; i < (j + 1) * width; ++i) {
      const float value = scale * static_cast<float>(format.value(plain.code[i]));
      out[i] = !format.mins ? value : format.subs ? value - min : value + min;
    }
  }
}

}  // namespace weft
