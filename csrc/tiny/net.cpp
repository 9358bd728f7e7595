#include "tiny/net.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/levels.h"
#include "core/memory.h"

namespace weft {

// Levels with vector kernels of their own have these too: a list that CMakeLists.txt generates.
#define WEFT_LEVEL(name)                  \
  namespace name {                        \
  extern const TinyKernels tiny_kernels;  \
  }
#include "vector_level_list.inc"
#undef WEFT_LEVEL

static const TinyKernels* own_kernels(const char* level) {
#define WEFT_LEVEL(name) \
  if (std::strcmp(level, #name) == 0) return &name::tiny_kernels;
#include "vector_level_list.inc"
#undef WEFT_LEVEL
  return nullptr;
}

const TinyKernels& tiny_kernels(const Level& level) {
  const Level* at = &level;
  while (!own_kernels(at->name)) --at;  // the lowest level that is built always has them
  return *own_kernels(at->name);
}

namespace {

constexpr int64_t kMaxCoded = 65'536;  // inputs of a layer in int8: no sum leaves 32 bits
constexpr int64_t kAloneProducts = 200'000;  // computed about as fast as a second thread wakes up

constexpr size_t kLarge = 64 << 10;  // bytes that are worth a huge page: reading small ones takes a fifth longer

void check(const std::vector<TinyGiven>& layers, bool int8) {
  if (layers.empty()) fail(ErrorKind::input, "tiny", "there are no layers");
  for (size_t i = 0; i < layers.size(); ++i) {
    const TinyGiven& layer = layers[i];
    if (layer.inputs < 1 || layer.outputs < 1 || (i && layer.inputs != layers[i - 1].outputs))
      fail(ErrorKind::input, "tiny", "layer " + std::to_string(i) + " does not fit the one before it");
    if (layer.activation == TinyActivation::softmax && i + 1 < layers.size())
      fail(ErrorKind::input, "tiny", "a softmax is for the last layer");
    if (int8 && layer.inputs > kMaxCoded)
      fail(ErrorKind::unsupported, "tiny",
           "int8 is for layers of at most 65,536 inputs; layer " + std::to_string(i) + " has " + std::to_string(layer.inputs));
  }
}

void pack_panels(const TinyGiven& given, float* panels) {
  for (int64_t out = 0; out < given.outputs; ++out)
    for (int64_t k = 0; k < given.inputs; ++k)
      panels[(out / 16 * given.inputs + k) * 16 + out % 16] = given.weight[out * given.inputs + k];
}

void pack_codes(const TinyGiven& given, int8_t* codes, float* scales) {
  for (int64_t out = 0; out < given.outputs; ++out) {
    const float* row = given.weight + out * given.inputs;
    float most = 0;
    for (int64_t k = 0; k < given.inputs; ++k) most = std::max(most, std::abs(row[k]));
    scales[out] = most / 127.0f;
    if (!(most > 0) || !std::isfinite(most)) continue;
    int8_t* to = codes + out * tiny_code_bytes(given.inputs);
    for (int64_t k = 0; k < given.inputs; ++k)
      to[k] = static_cast<int8_t>(std::clamp(std::nearbyint(row[k] * (127.0f / most)), -127.0f, 127.0f));
  }
}

}  // namespace

template <class T>
T* TinyNet::kept(int64_t count) {
  static Arena arena;
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  if (bytes >= kLarge) {
    blocks_.push_back(arena.take(bytes));
  } else {
    auto memory = std::make_shared<Memory>(bytes);
    blocks_.emplace_back(memory, memory->data());
  }
  return reinterpret_cast<T*>(blocks_.back().get());
}

TinyNet::TinyNet(const Level& level, const std::vector<TinyGiven>& layers, float temperature, bool int8)
    : kernels_(tiny_kernels(level)), temperature_(temperature) {
  check(layers, int8);
  for (const TinyGiven& given : layers) {
    const int64_t padded = tiny_padded(given.outputs), numbers = given.inputs * given.outputs;
    TinyLayer layer{given.inputs, given.outputs, given.activation, given.slope, nullptr, nullptr, nullptr, nullptr, false};
    float* bias = kept<float>(padded);
    for (int64_t i = 0; i < given.outputs; ++i) bias[i] = given.bias[i] + 0.0f;  // -0 becomes 0
    layer.bias = bias;
    const bool finite = std::all_of(given.weight, given.weight + numbers, [](float v) { return std::isfinite(v); });
    if (int8) {
      if (!finite) fail(ErrorKind::input, "tiny", "weights must be finite for int8");
      int8_t* codes = kept<int8_t>(given.outputs * tiny_code_bytes(given.inputs));
      float* scales = kept<float>(given.outputs);
      pack_codes(given, codes, scales);
      layer.codes = codes, layer.scales = scales;
    } else {
      float* panels = kept<float>(padded * given.inputs);
      pack_panels(given, panels);
      layer.panels = panels, layer.skips_zeros = finite;
    }
    layers_.push_back(layer);
  }
  row_room_ = make_room(1);
}

int64_t TinyNet::bytes() const {
  int64_t all = 0;
  for (const TinyLayer& layer : layers_)
    all += layer.codes ? layer.outputs * (layer.inputs + 8) : layer.outputs * (layer.inputs + 1) * 4;
  return all;
}

TinyRoom TinyNet::make_room(int64_t rows) {
  int64_t widest = 0, deepest = 0;
  for (const TinyLayer& layer : layers_) {
    widest = std::max(widest, tiny_padded(layer.outputs));
    deepest = std::max(deepest, layer.inputs);
  }
  return {kept<float>(rows * widest), kept<float>(rows * widest), kept<int8_t>(tiny_code_bytes(deepest)),
          kept<int32_t>(widest), kept<int32_t>(deepest)};
}

int64_t TinyNet::rows(const float* x, int64_t rows, bool raw, float* out, Pool& pool) {
  int64_t products = 0;
  for (const TinyLayer& layer : layers_) products += layer.inputs * layer.outputs;
  const int64_t tasks = (rows + kRows - 1) / kRows;
  const bool alone = tasks < 2 || rows * products < kAloneProducts;
  std::lock_guard<Turn> turn(turn_);
  while (static_cast<int64_t>(rooms_.size()) < (alone ? 1 : pool.size())) rooms_.push_back(make_room(kRows));
  std::atomic<int64_t> counter{0}, wrong{rows};
  const auto job = [&](int worker) {
    for (int64_t task; (task = counter.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      const int64_t first = task * kRows;
      const int64_t bad = kernels_.forward(layers_.data(), static_cast<int64_t>(layers_.size()), raw, temperature_,
                                           x + first * inputs(), std::min(kRows, rows - first),
                                           rooms_[static_cast<size_t>(worker)], out + first * outputs());
      if (bad >= 0)
        for (int64_t seen = wrong; first + bad < seen && !wrong.compare_exchange_weak(seen, first + bad);) {
        }
    }
  };
  if (alone)
    job(0);
  else
    pool.run([](void* context, int index) { (*static_cast<const decltype(job)*>(context))(index); }, const_cast<void*>(static_cast<const void*>(&job)));
  return wrong < rows ? wrong.load() : -1;
}

}  // namespace weft
