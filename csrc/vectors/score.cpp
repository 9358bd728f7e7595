#include "vectors/score.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace weft {
namespace {

std::string at(const char* what, int64_t index) { return std::string(what) + " " + std::to_string(index); }

constexpr const char* kNoDirection = "has a norm of zero: it has no direction";
constexpr const char* kOutOfRange =
    "has numbers too large or too small for float32 sums; bring it to unit length (weft.vectors.normalise) first";

bool all_finite(const float* x, int64_t n) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= std::isfinite(x[i]);
  return finite;
}

[[noreturn]] void refuse(const std::string& which, const std::string& what) {
  fail(ErrorKind::input, "vectors", which + " " + what);
}

}  // namespace

Scorer::Scorer(const VectorKernels& kernels, const Rows& queries, const Rows& rows, Metric metric)
    : kernels_(kernels), queries_(queries), rows_(rows), metric_(metric) {
  check_metric();
  if (rows_.is_float())
    prepare_floats();
  else
    prepare_ints();
}

void Scorer::check_metric() const {
  const bool coded = rows_.scales != nullptr;
  const bool same = rows_.is_float() ? queries_.is_float() : queries_.element == rows_.element;
  if (!same || coded != (queries_.scales != nullptr)) fail(ErrorKind::input, "vectors", "queries and rows must have the same element type");
  if (queries_.dim != rows_.dim)
    fail(ErrorKind::shape, "vectors", "queries have " + std::to_string(queries_.dim) + " dimensions, rows have " + std::to_string(rows_.dim));
  bool known = metric_ != Metric::hamming;
  if (coded) known = metric_ == Metric::dot || metric_ == Metric::cosine;
  if (rows_.element == Element::bits) known = metric_ == Metric::hamming || metric_ == Metric::cosine;
  if (!known) fail(ErrorKind::input, "vectors", "this metric is not defined for rows of this element type");
}

void Scorer::prepare_floats() {
  const auto type = static_cast<size_t>(queries_.element);
  wide_stride_ = (queries_.dim + 15) / 16 * 16;
  wide_ = Memory(static_cast<size_t>(queries_.count * wide_stride_) * sizeof(float));
  for (int64_t q = 0; q < queries_.count; ++q) {
    float* row = reinterpret_cast<float*>(wide_.data()) + q * wide_stride_;
    kernels_.widen[type](queries_.row(q), row, queries_.dim);
    if (!all_finite(row, queries_.dim)) refuse(at("query", q), "holds NaN or infinity");
    if (metric_ != Metric::cosine) continue;
    float squares = 0;
    kernels_.squares[0](nullptr, reinterpret_cast<const std::byte*>(row), 0, 1, queries_.dim, &squares);
    norms_.push_back(std::sqrt(static_cast<double>(squares)));
    if (std::all_of(row, row + queries_.dim, [](float x) { return x == 0; })) refuse(at("query", q), kNoDirection);
    if (!has_sound_norm(norms_.back())) refuse(at("query", q), kOutOfRange);
  }
}

void Scorer::prepare_ints() {
  for (int64_t q = 0; q < queries_.count; ++q) {
    if (rows_.element == Element::i8 && !rows_.scales) {
      int32_t squares = 0;
      kernels_.i8_squares(nullptr, queries_.row(q), 0, 1, queries_.dim, &squares);
      int_squares_.push_back(squares);
      if (metric_ == Metric::cosine && squares == 0) refuse(at("query", q), kNoDirection);
    } else if (queries_.norms && metric_ == Metric::cosine && !(queries_.norms[q] > 0)) {
      refuse(at("query", q), kNoDirection);
    }
  }
}

bool Scorer::needs_squares() const {
  if (rows_.is_float()) return metric_ == Metric::cosine && !rows_.norms;
  return rows_.element == Element::i8 && !rows_.scales && metric_ != Metric::dot && metric_ != Metric::manhattan;
}

void Scorer::block(int64_t query, int64_t n_queries, int64_t first, int64_t n, float* out, Scratch& scratch) const {
  if (rows_.is_float()) return floats(query, n_queries, first, n, out, scratch);
  const auto count = static_cast<size_t>(n);
  scratch.sums.resize(std::max(scratch.sums.size(), count));
  if (needs_squares()) {
    scratch.int_squares.resize(std::max(scratch.int_squares.size(), count));
    kernels_.i8_squares(nullptr, rows_.row(first), rows_.stride, n, rows_.dim, scratch.int_squares.data());
  }
  for (int64_t q = 0; q < n_queries; ++q) ints(query + q, first, n, out + q * n, scratch);
}

void Scorer::floats(int64_t query, int64_t n_queries, int64_t first, int64_t n, float* out, Scratch& scratch) const {
  const auto type = static_cast<size_t>(rows_.element);
  const FloatSums& sums = kernels_.scan[type];
  const std::byte* rows = rows_.row(first);
  const float* wide = reinterpret_cast<const float*>(wide_.data()) + query * wide_stride_;
  if (metric_ == Metric::dot || metric_ == Metric::cosine) {
    const bool squares = needs_squares();
    if (squares) scratch.squares.resize(std::max(scratch.squares.size(), static_cast<size_t>(n)));
    if (squares && n_queries == 1) {
      kernels_.dot_squares[type](wide, rows, rows_.stride, n, rows_.dim, out, scratch.squares.data());
    } else {
      if (squares) kernels_.squares[type](nullptr, rows, rows_.stride, n, rows_.dim, scratch.squares.data());
      kernels_.dot_many[type](wide, wide_stride_, n_queries, rows, rows_.stride, n, rows_.dim, out, n);
    }
    if (metric_ == Metric::cosine)
      for (int64_t q = 0; q < n_queries; ++q) cosines(query + q, first, n, scratch.squares.data(), out + q * n);
    return;
  }
  const FloatSum sum = metric_ == Metric::manhattan ? sums.absolute : sums.squared;
  for (int64_t q = 0; q < n_queries; ++q) sum(wide + q * wide_stride_, rows, rows_.stride, n, rows_.dim, out + q * n);
  if (metric_ == Metric::euclidean)
    for (int64_t i = 0; i < n_queries * n; ++i) out[i] = std::sqrt(out[i]);
}

void Scorer::cosines(int64_t query, int64_t first, int64_t n, const float* squares, float* out) const {
  const double norm = norms_[static_cast<size_t>(query)];
  const float* norms = rows_.norms ? rows_.norms + first : nullptr;
  for (int64_t i = 0; i < n; ++i) {
    const double other = norms ? norms[i] : std::sqrt(static_cast<double>(squares[i]));
    out[i] = cosine_of(out[i], norm, other);
  }
}

void Scorer::ints(int64_t query, int64_t first, int64_t n, float* out, Scratch& scratch) const {
  int32_t* sums = scratch.sums.data();
  const std::byte* rows = rows_.row(first);
  IntSum sum = kernels_.i8_dot;
  if (metric_ == Metric::manhattan) sum = kernels_.i8_absolute;
  if (rows_.element == Element::u4) sum = kernels_.u4_dot;
  if (rows_.element == Element::bits) sum = kernels_.hamming;
  sum(queries_.row(query), rows, rows_.stride, n, rows_.size(), sums);
  if (rows_.scales) return codes(query, first, n, sums, out);
  if (rows_.element == Element::bits && metric_ == Metric::cosine) {  // 1 - 2 h / d
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(1.0 - 2.0 * sums[i] / static_cast<double>(rows_.dim));
    for (int64_t i = 0; rows_.norms && i < n; ++i)
      if (!(rows_.norms[first + i] > 0)) out[i] = std::numeric_limits<float>::quiet_NaN();  // bits of no direction
    return;
  }
  if (metric_ == Metric::hamming || metric_ == Metric::dot || metric_ == Metric::manhattan) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(sums[i]);
    return;
  }
  const int32_t* squares = scratch.int_squares.data();
  const int64_t own = int_squares_.empty() ? 0 : int_squares_[static_cast<size_t>(query)];
  for (int64_t i = 0; i < n; ++i) {
    const double squared = static_cast<double>(own + squares[i] - 2 * int64_t{sums[i]});
    if (metric_ == Metric::cosine)
      out[i] = static_cast<float>(sums[i] / (std::sqrt(static_cast<double>(own)) * std::sqrt(static_cast<double>(squares[i]))));
    else
      out[i] = static_cast<float>(metric_ == Metric::euclidean ? std::sqrt(squared) : squared);
  }
}

// int8: a = q / s, so a.b = sum(qa qb) / (sa sb). 4 bits: a = q / s - m, so
// a.b = sum(qa qb) / (sa sb) - mb sum(qa) / sa - ma sum(qb) / sb + d ma mb.
void Scorer::codes(int64_t query, int64_t first, int64_t n, const int32_t* sums, float* out) const {
  const double scale = queries_.scales[query], norm = queries_.norms[query];
  const bool shifted = rows_.element == Element::u4, cosine = metric_ == Metric::cosine;
  const double offset = shifted ? queries_.offsets[query] : 0, total = shifted ? queries_.sums[query] : 0;
  const float *scales = rows_.scales + first, *norms = rows_.norms + first;
  if (!shifted) {
    for (int64_t i = 0; i < n; ++i)
      out[i] = static_cast<float>(sums[i] / (cosine ? scale * scales[i] * (norm * norms[i]) : scale * scales[i]));
    return;
  }
  const double dim = static_cast<double>(rows_.dim);
  for (int64_t i = 0; i < n; ++i) {
    const double other = scales[i], m = rows_.offsets[first + i], sum = rows_.sums[first + i];
    const double dot = sums[i] / (scale * other) - m * total / scale - offset * sum / other + dim * offset * m;
    out[i] = static_cast<float>(cosine ? dot / (norm * norms[i]) : dot);
  }
}

void Scorer::explain(int64_t query, int64_t row) const {
  const std::string which = at("row", row);
  if (rows_.is_float()) {
    std::vector<float> wide(static_cast<size_t>(rows_.dim));
    kernels_.widen[static_cast<size_t>(rows_.element)](rows_.row(row), wide.data(), rows_.dim);
    if (!all_finite(wide.data(), rows_.dim)) refuse(which, "holds NaN or infinity");
    const bool nothing = std::all_of(wide.begin(), wide.end(), [](float x) { return x == 0; });
    if (metric_ == Metric::cosine && (nothing || (rows_.norms && !(rows_.norms[row] > 0)))) refuse(which, kNoDirection);
    if (metric_ == Metric::cosine) refuse(which, kOutOfRange);
    refuse(which, "and " + at("query", query) + ": their numbers are too large for float32 sums");
  }
  if (metric_ == Metric::cosine && (!rows_.norms || !(rows_.norms[row] > 0))) refuse(which, kNoDirection);
  refuse(which, "has a scale or a norm that is not finite");
}

}  // namespace weft
