#include "vectors/codes.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

namespace weft {
namespace {

constexpr float kTiny = 1e-10f;  // a row with nothing larger gets the scale 1, and all its codes are that of zero
constexpr int64_t kRowsEach = 256;

struct Extent {
  float largest;
  float norm;
};

// Four sums in double precision, in a fixed order: the norm of a row of any float32 numbers, squares beyond its range too.
Extent extent_of(const float* x, int64_t dim) {
  float largest = 0;
  double squares[4] = {};
  int64_t i = 0;
  for (; i + 4 <= dim; i += 4)
    for (int lane = 0; lane < 4; ++lane) {
      largest = std::max(largest, std::fabs(x[i + lane]));
      squares[lane] += static_cast<double>(x[i + lane]) * x[i + lane];
    }
  for (; i < dim; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    squares[3] += static_cast<double>(x[i]) * x[i];
  }
  return {largest, static_cast<float>(std::sqrt((squares[0] + squares[1]) + (squares[2] + squares[3])))};
}

// Half away from zero. The fraction is exact, so 0.49999997 stays 0; values here are below 2^31.
int nearest(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

// 127/largest and 15/(2 largest) overflow for the smallest numbers that are not tiny; kTiny keeps them finite.
void encode_i8(const float* x, int64_t dim, int8_t* codes, float& scale, Extent extent) {
  scale = extent.largest > kTiny ? 127.0f / extent.largest : 1.0f;
  for (int64_t i = 0; i < dim; ++i) codes[i] = static_cast<int8_t>(std::clamp(nearest(x[i] * scale), -127, 127));
}

void encode_u4(const float* x, int64_t dim, uint8_t* codes, float& scale, float& offset, int32_t& sum, Extent extent) {
  offset = extent.largest;
  scale = extent.largest > kTiny ? 15.0f / (2.0f * extent.largest) : 1.0f;
  sum = 0;
  const auto code = [&](int64_t i) { return std::clamp(nearest((x[i] + offset) * scale), 0, 15); };
  for (int64_t i = 0; i < dim; i += 2) {  // the even one in the high half
    const int high = code(i), low = i + 1 < dim ? code(i + 1) : 0;
    codes[i / 2] = static_cast<uint8_t>(high << 4 | low);
    sum += high + low;
  }
}

void encode_bits(const float* x, int64_t dim, uint8_t* codes, float threshold) {
  for (int64_t byte = 0; byte < (dim + 7) / 8; ++byte) {
    unsigned bits = 0;
    for (int64_t i = byte * 8; i < byte * 8 + 8; ++i) bits = bits << 1 | (i < dim && x[i] >= threshold);  // first on top
    codes[byte] = static_cast<uint8_t>(bits);
  }
}

// Sums of squares do not overflow in double precision, so a norm that is not finite means that an element is not.
// A norm beyond float32, and twice a largest element, are refused as well.
bool usable(Extent extent) { return std::isfinite(extent.norm) && extent.largest <= std::numeric_limits<float>::max() / 2; }

}  // namespace

void encode(Element element, const std::byte* x, int64_t count, int64_t dim, int64_t stride, float threshold,
            const CodesOut& out, Pool& pool) {
  const int64_t size = Rows{.dim = dim, .element = element}.size();
  std::atomic<int64_t> counter{0}, bad{count};
  const auto encode_row = [&](int64_t row) {
    const float* from = reinterpret_cast<const float*>(x + row * stride);
    const Extent extent = extent_of(from, dim);
    if (!usable(extent)) {
      for (int64_t seen = bad.load(); row < seen && !bad.compare_exchange_weak(seen, row);) {
      }
      return;
    }
    std::byte* codes = out.codes + row * size;
    out.norms[row] = extent.norm;
    if (element == Element::i8) encode_i8(from, dim, reinterpret_cast<int8_t*>(codes), out.scales[row], extent);
    if (element == Element::u4)
      encode_u4(from, dim, reinterpret_cast<uint8_t*>(codes), out.scales[row], out.offsets[row], out.sums[row], extent);
    if (element == Element::bits) encode_bits(from, dim, reinterpret_cast<uint8_t*>(codes), threshold);
  };
  auto job = [&](int) {
    for (int64_t first; (first = counter.fetch_add(1) * kRowsEach) < count;)
      for (int64_t row = first; row < std::min(count, first + kRowsEach); ++row) encode_row(row);
  };
  if (count <= kRowsEach)
    job(0);
  else
    pool.run([](void* context, int index) { (*static_cast<decltype(job)*>(context))(index); }, &job);
  if (bad < count)
    fail(ErrorKind::input, "vectors", "row " + std::to_string(bad.load()) + " holds NaN, infinity, or numbers too large for float32 sums");
}

}  // namespace weft
