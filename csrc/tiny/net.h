// net: layers as the kernels read them, and a forward pass over any number of rows.
#pragma once
#include <memory>
#include <vector>

#include "core/pool.h"
#include "tiny/kernels.h"

namespace weft {

// A layer as it is given: weight [outputs, inputs] row by row, bias [outputs].
struct TinyGiven {
  int64_t inputs, outputs;
  TinyActivation activation;
  float slope;
  const float *weight, *bias;
};

class TinyNet {
 public:
  // Copies the layers. `int8` rounds weights to 127 steps of the largest of their output. Throws Error(input) where layers do not
  // fit each other.
  TinyNet(const Level& level, const std::vector<TinyGiven>& layers, float temperature, bool int8);

  int64_t inputs() const { return layers_.front().inputs; }
  int64_t outputs() const { return layers_.back().outputs; }
  int64_t bytes() const;  // of weights

  // out [outputs] of x [inputs], or false where x has NaN or infinity. Allocates nothing; for one caller at a time.
  bool row(const float* x, float* out) {
    return kernels_.forward(layers_.data(), static_cast<int64_t>(layers_.size()), false, temperature_, x, 1, row_room_, out) < 0;
  }

  // out [rows, outputs] of x [rows, inputs], the same bits as one by one. Returns the first row that has NaN or infinity, or -1.
  // The first call for a larger team allocates its room.
  int64_t rows(const float* x, int64_t rows, bool raw, float* out, Pool& pool);

 private:
  static constexpr int64_t kRows = 60;  // of a task

  template <class T>
  T* kept(int64_t count);  // aligned, zeroed, as long as the network
  TinyRoom make_room(int64_t rows);

  const TinyKernels& kernels_;
  const float temperature_;
  std::vector<TinyLayer> layers_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  TinyRoom row_room_;
  Turn turn_;  // of callers with many rows
  std::vector<TinyRoom> rooms_;
};

}  // namespace weft
