#include "pictures/resize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace weft {
namespace {

constexpr int64_t kTall = 100;  // pictures taller than so many times their width are summed down first, as Pillow does
constexpr int kBits = 22;  // of a weight: a sum of bytes times weights stays within 32 bits

double bilinear(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  return x < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * a : 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= 3.14159265358979323846;
  return std::sin(x) / x;
}

double lanczos(double x) { return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0; }

double weight_at(Filter filter, double x) {
  return filter == Filter::bilinear ? bilinear(x) : filter == Filter::bicubic ? bicubic(x) : lanczos(x);
}

double reach_of(Filter filter) { return filter == Filter::bilinear ? 1.0 : filter == Filter::bicubic ? 2.0 : 3.0; }

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

// Calls each(row) for every row below `rows`, shared out among the threads in turns.
template <class Each>
void for_rows(Pool& pool, int64_t rows, Each each) {
  struct Job {
    std::atomic<int64_t> next{0};
    int64_t rows;
    Each* each;
  } job{{0}, rows, &each};
  const auto work = [](void* context, int) {
    Job& shared = *static_cast<Job*>(context);
    for (int64_t row = shared.next++; row < shared.rows; row = shared.next++) (*shared.each)(row);
  };
  const int workers = static_cast<int>(std::min<int64_t>(pool.size(), std::max<int64_t>(rows, 1)));
  pool.run(work, &job, workers);
}

}  // namespace

Taps taps_of(int64_t from, int64_t to, int64_t start, int64_t size, Filter filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double wide = std::max(scale, 1.0);  // a smaller result sums over as many pixels as fall together
  const double reach = reach_of(filter) * wide, narrow = 1.0 / wide;
  Taps taps;
  taps.most = std::min<int64_t>(static_cast<int64_t>(std::ceil(reach)) * 2 + 1, from);
  taps.first.assign(size, 0);
  taps.count.assign(size, 0);
  taps.weights.assign(size * taps.most, 0);
  std::vector<double> found(taps.most);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t pixel = start + i;
    if (pixel < 0 || pixel >= to) continue;
    const double centre = (static_cast<double>(pixel) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(centre - reach + 0.5), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(centre + reach + 0.5), from);
    const int64_t count = std::min<int64_t>(end - first, taps.most);
    double total = 0.0;
    for (int64_t k = 0; k < count; ++k) {
      found[k] = weight_at(filter, (static_cast<double>(k + first) - centre + 0.5) * narrow);
      total += found[k];
    }
    for (int64_t k = 0; k < count; ++k) {
      const double share = total != 0.0 ? found[k] / total : found[k];
      taps.weights[i * taps.most + k] = static_cast<int32_t>((share < 0.0 ? -0.5 : 0.5) + share * (1 << kBits));
    }
    taps.first[i] = static_cast<int32_t>(first);
    taps.count[i] = static_cast<int32_t>(count);
  }
  return taps;
}

Resize::Resize(Frame source, Frame result, Frame corner, Frame window, Filter filter)
    : source_(source),
      window_(window),
      across_(taps_of(source.cols, result.cols, corner.cols, window.cols, filter)),
      down_(taps_of(source.rows, result.rows, corner.rows, window.rows, filter)),
      down_first_(source.rows > kTall * source.cols && result.rows < source.rows) {
  first_ = source.rows;
  for (int64_t row = 0; row < window.rows; ++row) {
    if (down_.count[row] == 0) continue;
    first_ = std::min<int64_t>(first_, down_.first[row]);
    end_ = std::max<int64_t>(end_, down_.first[row] + down_.count[row]);
  }
  first_ = std::min(first_, end_);
  if (down_first_) sums_.assign(window.rows * source.cols * kColours, 1 << (kBits - 1));
  else narrow_.assign((end_ - first_) * window.cols * kColours, 0);
}

// A row of the source, or of what is left of it, at the columns of the window; those past the picture are 0.
void Resize::across(const uint8_t* source, uint8_t* out) const {
  for (int64_t col = 0; col < window_.cols; ++col, out += kColours) {
    const int32_t taps = across_.count[col];
    const int32_t* weights = across_.weights.data() + col * across_.most;
    const uint8_t* from = source + static_cast<int64_t>(across_.first[col]) * kColours;
    int32_t red = 1 << (kBits - 1), green = red, blue = red;
    for (int32_t k = 0; k < taps; ++k, from += kColours) {
      red += from[0] * weights[k];
      green += from[1] * weights[k];
      blue += from[2] * weights[k];
    }
    out[0] = rounded(red), out[1] = rounded(green), out[2] = rounded(blue);
  }
}

void Resize::take(int64_t at, int64_t rows, const uint8_t* pixels, Pool& pool) {
  const int64_t begin = std::max(at, first_), end = std::min(at + rows, end_);
  if (end <= begin) return;
  const int64_t width = source_.cols * kColours;
  if (!down_first_) {
    for_rows(pool, end - begin, [&](int64_t i) {
      across(pixels + (begin - at + i) * width, narrow_.data() + (begin - first_ + i) * window_.cols * kColours);
    });
    return;
  }
  for_rows(pool, window_.rows, [&](int64_t row) {
    const int64_t first = down_.first[row], last = std::min<int64_t>(first + down_.count[row], end);
    int32_t* sums = sums_.data() + row * width;
    for (int64_t from = std::max(first, begin); from < last; ++from) {
      const int32_t weight = down_.weights[row * down_.most + from - first];
      const uint8_t* source = pixels + (from - at) * width;
      for (int64_t i = 0; i < width; ++i) sums[i] += source[i] * weight;
    }
  });
}

// `sums` has room for a row of the window, and of the source where that is summed down first.
void Resize::row_of(int64_t row, int32_t* sums, uint8_t* out) const {
  const int64_t width = window_.cols * kColours;
  if (down_.count[row] == 0) {
    std::fill(out, out + width, 0);
    return;
  }
  if (down_first_) {
    auto* bytes = reinterpret_cast<uint8_t*>(sums);
    const int32_t* from = sums_.data() + row * source_.cols * kColours;
    for (int64_t i = 0; i < source_.cols * kColours; ++i) bytes[i] = rounded(from[i]);
    across(bytes, out);
    return;
  }
  std::fill(sums, sums + width, 1 << (kBits - 1));
  const uint8_t* from = narrow_.data() + (down_.first[row] - first_) * width;
  for (int32_t k = 0; k < down_.count[row]; ++k, from += width) {
    const int32_t weight = down_.weights[row * down_.most + k];
    for (int64_t i = 0; i < width; ++i) sums[i] += from[i] * weight;
  }
  for (int64_t i = 0; i < width; ++i) out[i] = rounded(sums[i]);
}

void Resize::pixels(uint8_t* out, Pool& pool) const {
  const int64_t width = window_.cols * kColours;
  for_rows(pool, window_.rows, [&](int64_t row) {
    std::vector<int32_t> sums(std::max(width, source_.cols * kColours));
    row_of(row, sums.data(), out + row * width);
  });
}

void Resize::patches(float* out, const float* table, int64_t patch, bool interleaved, Pool& pool) const {
  const int64_t width = window_.cols * kColours, across = window_.cols / patch, size = patch * patch * kColours;
  for_rows(pool, window_.rows / patch * patch, [&](int64_t row) {
    std::vector<int32_t> sums(std::max(width, source_.cols * kColours));
    std::vector<uint8_t> bytes(width);
    row_of(row, sums.data(), bytes.data());
    for (int64_t which = 0; which < across; ++which) {
      float* one = out + (row / patch * across + which) * size;
      const uint8_t* from = bytes.data() + which * patch * kColours;
      for (int64_t col = 0; col < patch; ++col)
        for (int64_t colour = 0; colour < kColours; ++colour) {
          const int64_t line = row % patch;
          const int64_t at = interleaved ? (line * patch + col) * kColours + colour : (colour * patch + line) * patch + col;
          one[at] = table[colour * 256 + from[col * kColours + colour]];
        }
    }
  });
}

}  // namespace weft
