// arrays: operands for the tests, and the checks that hold for every op.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string_view>

#include "tests/test.h"

namespace weft::test {

// A block of elements that starts `shift` elements after an aligned address, so that nothing may count on alignment.
template <class T>
class Array {
 public:
  explicit Array(std::vector<int64_t> shape, int shift = 0) : shape_(std::move(shape)), shift_(shift) {
    size_t count = 1;
    for (int64_t n : shape_) count *= static_cast<size_t>(n);
    store_.resize(count + static_cast<size_t>(shift));
  }
  T* data() { return store_.data() + shift_; }
  const T* data() const { return store_.data() + shift_; }
  size_t size() const { return store_.size() - static_cast<size_t>(shift_); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  const std::vector<int64_t>& shape() const { return shape_; }
  Operand operand() const {
    Operand o;
    o.data = reinterpret_cast<std::byte*>(const_cast<T*>(data()));
    o.dtype = std::is_same_v<T, float> ? DType::f32 : DType::i32;
    o.rank = static_cast<int>(shape_.size());
    for (size_t i = 0; i < shape_.size(); ++i) o.dim[i] = shape_[i];
    return o;
  }

 private:
  std::vector<int64_t> shape_;
  int shift_;
  std::vector<T> store_;
};
using Floats = Array<float>;
using Ints = Array<int32_t>;

inline Floats normal(std::vector<int64_t> shape, unsigned seed, int shift = 0, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0.0f, scale);
  Floats a(std::move(shape), shift);
  for (size_t i = 0; i < a.size(); ++i) a[i] = draw(random);
  return a;
}
inline Ints ints(std::initializer_list<int32_t> values) {
  Ints a({static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), a.data());
  return a;
}

// Tokens [begin, end) of x [tokens, heads, dim] as an operand of their own.
inline Operand slice(const Floats& x, int64_t begin, int64_t end) {
  Operand o = x.operand();
  o.data += begin * o.dim[1] * o.dim[2] * 4;
  o.dim[0] = end - begin;
  return o;
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool fuses(const Level& level) { return std::string_view(level.name) != "scalar"; }

// Largest |got - want| / (1 + |want|); infinite when a result is NaN.
inline double error_of(const Floats& got, const std::vector<double>& want) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    double error = std::abs(got[i] - want[i]) / (1 + std::abs(want[i]));
    if (!(error <= worst)) worst = error == error ? error : INFINITY;
  }
  return worst;
}

// Runs an op of one result at every level with 1 to 3 workers: the result is within `tolerance` of `want`, the number
// of workers changes no bit, and the levels with a fused multiply-add agree to the bit.
inline void check_op(const char* op, const std::vector<Operand>& in, const std::vector<int64_t>& shape, int shift,
                     const std::vector<Attr>& attrs, const std::vector<double>& want, double tolerance) {
  std::vector<Floats> fused;
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    std::vector<Floats> got;
    for (int workers = 1; workers <= 3; ++workers) {
      got.emplace_back(shape, shift);
      run_kernel(level, op, in, {got.back().operand()}, attrs, workers);
      CHECK(same_bits(got.front(), got.back()));
    }
    double error = error_of(got.front(), want);
    if (!(error <= tolerance)) std::printf("%s at %s: error %.3g above %.3g\n", op, level.name, error, tolerance);
    CHECK(got.front().size() == want.size() && error <= tolerance);
    if (fuses(level)) fused.push_back(got.front());
  }
  for (const Floats& result : fused) CHECK(same_bits(fused.front(), result));
}

inline std::vector<double> map(size_t count, const std::function<double(size_t)>& f) {
  std::vector<double> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = f(i);
  return all;
}

}  // namespace weft::test
