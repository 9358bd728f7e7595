// resize: a picture of bytes resized with antialiasing, and a window of the result as bytes or as patches of floats.
#pragma once
#include <cstdint>
#include <vector>

#include "core/pool.h"

namespace weft {

enum class Filter { bilinear, bicubic, lanczos };

constexpr int kColours = 3;

// Which source pixels each pixel of the window sums, along one axis, and their weights in units of 2^-22.
struct Taps {
  int64_t most = 0;                // weights per pixel
  std::vector<int32_t> first;      // the first source pixel
  std::vector<int32_t> count;      // how many of them
  std::vector<int32_t> weights;    // [pixels, most]
};

// Pixels [start, start + size) of `to` that `from` source pixels are resized to. Those outside [0, to) have no taps.
Taps taps_of(int64_t from, int64_t to, int64_t start, int64_t size, Filter filter);

struct Frame {
  int64_t rows, cols;
};

class Resize {
 public:
  // A source picture, the size that it is resized to, and the window of the result that is wanted, which may reach past it:
  // pixels there are 0.
  Resize(Frame source, Frame result, Frame corner, Frame window, Filter filter);

  // The source rows that the window needs: from the first, up to but without the second.
  int64_t first_row() const { return first_; }
  int64_t end_row() const { return end_; }
  Frame source() const { return source_; }
  Frame window() const { return window_; }

  // Take source rows [at, at + rows), bytes [rows, source cols, 3]; rows that are not needed are passed over.
  void take(int64_t at, int64_t rows, const uint8_t* pixels, Pool& pool);

  // The window as bytes [rows, cols, 3].
  void pixels(uint8_t* out, Pool& pool) const;

  // The window cut into square patches of `patch` pixels, each a row of floats: table[colour][byte]. Row by row, the
  // numbers of a patch are by colour, row and column, or with `interleaved` by row, column and colour.
  void patches(float* out, const float* table, int64_t patch, bool interleaved, Pool& pool) const;

 private:
  void across(const uint8_t* source, uint8_t* out) const;
  void row_of(int64_t row, int32_t* sums, uint8_t* out) const;

  Frame source_, window_;
  Taps across_, down_;
  int64_t first_ = 0, end_ = 0;
  bool down_first_;
  std::vector<uint8_t> narrow_;  // [end - first, window cols, 3]; of a picture that is summed down first, nothing
  std::vector<int32_t> sums_;    // [window rows, source cols, 3] of such a picture
};

}  // namespace weft
