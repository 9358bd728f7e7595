// Recurrent states in slots: bytes in and out, layers in one memory; the ops that read and write them give the same bits
// however a text is cut and however large the team is.
#include <cmath>

#include "core/error.h"
#include "core/state.h"
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

static Operand operand_of(const SlotState& state) {
  Operand o;
  o.slots = &state;
  return o;
}

static Operand rows_of(const Floats& x, int64_t begin, int64_t end) {
  Operand o = x.operand();
  int64_t row = 1;
  for (int i = 1; i < o.rank; ++i) row *= o.dim[i];
  o.data += begin * row * 4;
  o.dim[0] = end - begin;
  return o;
}

static Ints slots_of(int32_t source, int32_t target) {
  Ints a({1, 2});
  a[0] = source, a[1] = target;
  return a;
}

TEST(slots_of_layers_share_memory_and_keep_apart) {
  std::vector<std::shared_ptr<SlotState>> layers;
  for (int64_t size : {3, 5}) layers.push_back(std::make_shared<SlotState>(4, size, false));
  join_slots(layers);
  for (int64_t slot = 0; slot < 4; ++slot)
    for (auto& layer : layers)
      for (int64_t i = 0; i < layer->size; ++i) layer->slot(slot)[i] = static_cast<float>(100 * slot + 10 * layer->size + i);
  float part[5];
  layers[1]->read_slot(2, reinterpret_cast<std::byte*>(part), sizeof part);
  CHECK(part[0] == 250 && part[4] == 254 && layers[0]->slot(2)[2] == 232 && layers[0]->slot(3)[0] == 330);
  int refused = 0;
  for (int64_t slot : {int64_t{-1}, int64_t{4}}) try {
      layers[1]->read_slot(slot, reinterpret_cast<std::byte*>(part), sizeof part);
    } catch (const Error&) {
      ++refused;
    }
  try {
    layers[0]->write_slot(0, reinterpret_cast<std::byte*>(part), sizeof part);
  } catch (const Error&) {
    ++refused;
  }
  CHECK(refused == 3);
}

TEST(causal_conv_is_the_same_however_a_text_is_cut) {
  const int64_t tokens = 37, channels = 33, width = 4;
  const Floats x = normal({tokens, channels}, 1), weight = normal({channels, width}, 2), bias = normal({channels}, 3);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats whole({tokens, channels}), cut({tokens, channels});
    SlotState state(4, channels * (width - 1));
    auto run = [&](int64_t begin, int64_t end, int32_t source, int32_t target, Floats& y, int workers) {
      const Ints slots = slots_of(source, target), segments = ints({0, static_cast<int32_t>(end - begin)});
      run_kernel(level, "causal_conv",
                 {rows_of(x, begin, end), weight.operand(), operand_of(state), slots.operand(), segments.operand(), bias.operand()},
                 {rows_of(y, begin, end)}, {}, workers);
    };
    run(0, tokens, -1, 0, whole, 3);
    int32_t at = -1;
    for (int64_t begin : {0, 1, 2, 7, 36}) {
      const int64_t end = begin == 0 ? 1 : begin == 1 ? 2 : begin == 2 ? 7 : begin == 7 ? 36 : tokens;
      run(begin, end, at, at == 1 ? 2 : 1, cut, 1);
      at = at == 1 ? 2 : 1;
    }
    CHECK(same_bits(whole, cut));
    CHECK(std::memcmp(state.slot(0), state.slot(at), state.slot_bytes()) == 0);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < channels; ++c) {
        double want = bias[static_cast<size_t>(c)];
        for (int64_t j = 0; j < width; ++j)
          if (t - width + 1 + j >= 0)
            want += double(weight[static_cast<size_t>(c * width + j)]) * x[static_cast<size_t>((t - width + 1 + j) * channels + c)];
        CHECK(std::abs(whole[static_cast<size_t>(t * channels + c)] - want) <= 1e-5 * (1 + std::abs(want)));
      }
  }
}

TEST(delta_rule_is_the_same_however_a_text_is_cut) {
  const int64_t tokens = 21, groups = 2, heads = 4, keys = 17, values = 19;
  const Floats q = normal({tokens, groups, keys}, 1, 0, 0.3f), k = normal({tokens, groups, keys}, 2, 0, 0.3f);
  const Floats v = normal({tokens, heads, values}, 3);
  Floats decay = normal({tokens, heads}, 4), beta = normal({tokens, heads}, 5);
  for (size_t i = 0; i < decay.size(); ++i) decay[i] = -std::abs(decay[i]), beta[i] = 1 / (1 + std::exp(-beta[i]));
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats whole({tokens, heads, values}), cut({tokens, heads, values});
    SlotState state(3, heads * keys * values);
    auto run = [&](int64_t begin, int64_t end, int32_t source, int32_t target, Floats& y, int workers) {
      const Ints slots = slots_of(source, target), segments = ints({0, static_cast<int32_t>(end - begin)});
      run_kernel(level, "delta_rule",
                 {rows_of(q, begin, end), rows_of(k, begin, end), rows_of(v, begin, end), rows_of(decay, begin, end),
                  rows_of(beta, begin, end), operand_of(state), slots.operand(), segments.operand()},
                 {rows_of(y, begin, end)}, {{"scale", 0.25}, {"tiled", 0.0}}, workers);
    };
    run(0, tokens, -1, 0, whole, 3);
    run(0, 1, -1, 1, cut, 1);
    run(1, 9, 1, 2, cut, 2);
    run(9, 9, 2, 1, cut, 1);  // no tokens: the state is passed on
    run(9, tokens, 1, 1, cut, 1);
    CHECK(same_bits(whole, cut));
    CHECK(std::memcmp(state.slot(0), state.slot(1), state.slot_bytes()) == 0);
    double memory[17][19] = {};  // head 3, in double precision
    for (int64_t t = 0; t < tokens; ++t) {
      const float *key = k.data() + (t * groups + 1) * keys, *query = q.data() + (t * groups + 1) * keys;
      const size_t at = static_cast<size_t>(t * heads + 3);
      for (int64_t j = 0; j < values; ++j) {
        double known = 0, sum = 0;
        for (int64_t i = 0; i < keys; ++i) known += key[i] * (memory[i][j] *= std::exp(double(decay[at])));
        const double change = beta[at] * (v[at * values + static_cast<size_t>(j)] - known);
        for (int64_t i = 0; i < keys; ++i) sum += query[i] * (memory[i][j] += key[i] * change);
        CHECK(std::abs(whole[at * values + static_cast<size_t>(j)] - 0.25 * sum) <= 1e-4);
      }
    }
  }
}

TEST(mamba2_is_the_same_however_a_text_is_cut) {
  const int64_t tokens = 21, groups = 2, heads = 4, size = 17, values = 35;
  const Floats x = normal({tokens, heads, values}, 1), b = normal({tokens, groups, size}, 2), c = normal({tokens, groups, size}, 3);
  Floats rate = normal({tokens, heads}, 4), decay = normal({heads}, 5);
  const Floats skip = normal({heads}, 6);
  for (size_t i = 0; i < rate.size(); ++i) rate[i] = std::log1p(std::exp(rate[i]));
  for (size_t i = 0; i < decay.size(); ++i) decay[i] = -std::exp(decay[i]);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats whole({tokens, heads, values}), cut({tokens, heads, values});
    SlotState state(3, heads * size * values);
    auto run = [&](int64_t begin, int64_t end, int32_t source, int32_t target, Floats& y, int workers) {
      const Ints slots = slots_of(source, target), segments = ints({0, static_cast<int32_t>(end - begin)});
      run_kernel(level, "mamba2",
                 {rows_of(x, begin, end), rows_of(b, begin, end), rows_of(c, begin, end), rows_of(rate, begin, end),
                  decay.operand(), skip.operand(), operand_of(state), slots.operand(), segments.operand()},
                 {rows_of(y, begin, end)}, {}, workers);
    };
    run(0, tokens, -1, 0, whole, 3);
    run(0, 1, -1, 1, cut, 1);
    run(1, 9, 1, 2, cut, 2);
    run(9, 9, 2, 1, cut, 1);  // no tokens: the state is passed on
    run(9, tokens, 1, 1, cut, 1);
    CHECK(same_bits(whole, cut));
    CHECK(std::memcmp(state.slot(0), state.slot(1), state.slot_bytes()) == 0);
    double memory[17][35] = {};  // head 3, in double precision
    for (int64_t t = 0; t < tokens; ++t) {
      const float *into = b.data() + (t * groups + 1) * size, *out = c.data() + (t * groups + 1) * size;
      const size_t at = static_cast<size_t>(t * heads + 3);
      const double kept = std::exp(double(rate[at]) * decay[3]);
      for (int64_t j = 0; j < values; ++j) {
        const size_t place = at * values + static_cast<size_t>(j);
        double sum = double(skip[3]) * x[place];
        for (int64_t i = 0; i < size; ++i) sum += out[i] * (memory[i][j] = kept * memory[i][j] + into[i] * double(rate[at]) * x[place]);
        CHECK(std::abs(whole[place] - sum) <= 1e-4 * (1 + std::abs(sum)));
      }
    }
  }
}
