// recurrent_gradient: going back over the tokens of a text whose layer has a state. The gradient of a token needs the state
// before it, and states cannot be computed backwards: some are kept in scratch, and those between are computed again.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

namespace {

constexpr int64_t kLanes = 16;

// `Cell` has the state of some columns, [rows, 16]: forward(token, from, to) makes the state after a token, where `to` may be
// `from`; backward(token, before, slope) turns the gradient at the state after a token into that at the state before.
template <class Cell>
struct Backwards {
  const Cell& cell;
  int64_t size;  // elements of a state
  float* slope;  // the gradient at the state

  // Tokens [begin, end), with `before` the state before them; there is room for `room` states at `free`, at least two. The
  // order of sums is the tokens', so bits depend neither on the room nor on what else is in the step.
  void run(int64_t begin, int64_t end, const float* before, float* free, int64_t room) const {
    const int64_t length = end - begin;
    if (length <= room + 1) {
      for (int64_t i = 1; i < length; ++i) cell.forward(begin + i - 1, i == 1 ? before : free + (i - 2) * size, free + (i - 1) * size);
      for (int64_t i = length - 1; i >= 0; --i) cell.backward(begin + i, i == 0 ? before : free + (i - 1) * size, slope);
      return;
    }
    int64_t kept = 1;  // states between parts of equal length: as few as let a part fit beside them
    while (kept < room / 2 && step_of(length, kept) > room - kept + 1) ++kept;
    const int64_t step = step_of(length, kept), parts = (length + step - 1) / step;
    for (int64_t part = 1; part < parts; ++part) {
      float* to = free + (part - 1) * size;
      for (int64_t i = 0; i < step; ++i)
        cell.forward(begin + (part - 1) * step + i, i ? to : part == 1 ? before : to - size, to);
    }
    for (int64_t part = parts - 1; part >= 0; --part)
      run(begin + part * step, smaller(end, begin + (part + 1) * step), part ? free + (part - 1) * size : before,
          free + kept * size, room - kept);
  }

 private:
  static int64_t step_of(int64_t length, int64_t kept) { return (length + kept) / (kept + 1); }
};

// All tokens of a text, from a state of zeros, with a worker's scratch.
template <class Cell>
void go_back(const Cell& cell, int64_t rows, int64_t begin, int64_t end, std::byte* scratch) {
  const int64_t size = rows * kLanes, room = static_cast<int64_t>(kScratchBytes / sizeof(float)) / size - 2;
  float *slope = reinterpret_cast<float*>(scratch), *nothing = slope + size;
  std::memset(slope, 0, static_cast<size_t>(2 * size) * sizeof(float));
  Backwards<Cell>{cell, size, slope}.run(begin, end, nothing, nothing + size, room);
}

}  // namespace

}  // namespace weft::ISA
