// vectors: bindings of scans and codes. Arrays are numpy's; 16-bit floats come as uint16.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/levels.h"
#include "vectors/active.h"
#include "vectors/codes.h"
#include "vectors/scan.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Any = nb::ndarray<nb::ro, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Chosen = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void wrong(const std::string& what) { fail(ErrorKind::input, "vectors", what); }

Element element_named(const std::string& name) {
  constexpr std::pair<const char*, Element> kNames[] = {{"f32", Element::f32}, {"f16", Element::f16}, {"bf16", Element::bf16},
                                                        {"i8", Element::i8},   {"u4", Element::u4},   {"bits", Element::bits}};
  for (const auto& [known, element] : kNames)
    if (name == known) return element;
  wrong("unknown element type: " + name);
}

Metric metric_named(const std::string& name) {
  constexpr std::pair<const char*, Metric> kNames[] = {{"dot", Metric::dot},
                                                       {"cosine", Metric::cosine},
                                                       {"sqeuclidean", Metric::squared},
                                                       {"euclidean", Metric::euclidean},
                                                       {"manhattan", Metric::manhattan},
                                                       {"hamming", Metric::hamming}};
  for (const auto& [known, metric] : kNames)
    if (name == known) return metric;
  wrong("unknown metric: " + name + "; use dot, cosine, sqeuclidean, euclidean, manhattan or hamming");
}

size_t element_bytes(Element element) { return element == Element::f32 ? 4 : static_cast<int>(element) < kFloatTypes ? 2 : 1; }

// A Rows and the arrays it points into, which it keeps alive.
struct HeldRows {
  Rows rows;
  Any array;
  std::optional<Floats> norms, scales, offsets;
  std::optional<Ints> sums;
};

template <class A>
const typename A::Scalar* beside(const std::optional<A>& array, int64_t count, const char* name) {
  if (!array) return nullptr;
  if (static_cast<int64_t>(array->shape(0)) != count) wrong(std::string(name) + " must have one number per row");
  return array->data();
}

void hold(HeldRows* self, Any array, const std::string& element, int64_t dim, std::optional<Floats> norms,
          std::optional<Floats> scales, std::optional<Floats> offsets, std::optional<Ints> sums) {
  Rows rows;
  rows.element = element_named(element);
  rows.dim = dim;
  if (dim < 1 || dim > kMaxDim) wrong("vectors must have 1 to 65,536 dimensions, not " + std::to_string(dim));
  if (array.ndim() != 2 || static_cast<int64_t>(array.shape(1)) != rows.size()) wrong("rows do not have the size that their element type and dimension need");
  if (array.dtype().bits != 8 * element_bytes(rows.element)) wrong("the array's elements do not have the size of the element type");
  if (array.shape(0) > 0 && array.shape(1) > 1 && array.stride(1) != 1) wrong("the numbers of a row must be contiguous");
  rows.count = static_cast<int64_t>(array.shape(0));
  rows.stride = array.stride(0) * static_cast<int64_t>(element_bytes(rows.element));
  rows.data = static_cast<const std::byte*>(array.data());
  rows.norms = beside(norms, rows.count, "norms");
  rows.scales = beside(scales, rows.count, "scales");
  rows.offsets = beside(offsets, rows.count, "offsets");
  rows.sums = beside(sums, rows.count, "sums");
  const bool codes = rows.element == Element::u4 || rows.scales;
  if (codes && (!rows.scales || !rows.norms)) wrong("codes need scales and norms");
  if (rows.element == Element::u4 && (!rows.offsets || !rows.sums)) wrong("4-bit codes need offsets and sums");
  new (self) HeldRows{rows, std::move(array), std::move(norms), std::move(scales), std::move(offsets), std::move(sums)};
}

template <class T>
nb::object to_numpy(std::vector<T> values, size_t rows, size_t cols) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(kept->data(), {rows, cols}, owner));
}

nb::tuple as_tuple(Hits hits, int64_t queries) {
  const auto rows = static_cast<size_t>(queries), cols = static_cast<size_t>(hits.per_query);
  return nb::make_tuple(to_numpy(std::move(hits.rows), rows, cols), to_numpy(std::move(hits.scores), rows, cols));
}

void scores(const HeldRows& queries, const HeldRows& rows, const std::string& metric, Scores out, Pool& pool) {
  if (static_cast<int64_t>(out.shape(0)) != queries.rows.count || static_cast<int64_t>(out.shape(1)) != rows.rows.count)
    wrong("the array for scores must have the shape (queries, rows)");
  nb::gil_scoped_release release;
  scan_scores(Scorer(active_kernels(), queries.rows, rows.rows, metric_named(metric)), out.data(), pool);
}

nb::tuple top_k(const HeldRows& queries, const HeldRows& rows, const std::string& metric, int64_t k,
                std::optional<Mask> allowed, Pool& pool) {
  if (allowed && static_cast<int64_t>(allowed->shape(0)) != rows.rows.count) wrong("the mask must have one byte per row");
  Hits hits;
  {
    nb::gil_scoped_release release;
    int64_t most = rows.rows.count;
    if (allowed) {
      most = 0;
      for (int64_t i = 0; i < rows.rows.count; ++i) most += allowed->data()[i] != 0;
    }
    const Scorer scorer(active_kernels(), queries.rows, rows.rows, metric_named(metric));
    hits = scan_top(scorer, std::max<int64_t>(0, std::min(k, most)), allowed ? allowed->data() : nullptr, pool);
  }
  return as_tuple(std::move(hits), queries.rows.count);
}

nb::tuple top_k_of(const HeldRows& queries, const HeldRows& rows, const std::string& metric, int64_t k, Chosen chosen,
                   Pool& pool) {
  if (static_cast<int64_t>(chosen.shape(0)) != queries.rows.count) wrong("candidates must have one list per query");
  const auto per_query = static_cast<int64_t>(chosen.shape(1));
  for (size_t i = 0; i < chosen.size(); ++i)
    if (const int64_t row = chosen.data()[i]; row < -1 || row >= rows.rows.count)
      wrong("candidate " + std::to_string(row) + " is not a row: there are " + std::to_string(rows.rows.count) + " rows");
  Hits hits;
  {
    nb::gil_scoped_release release;
    const Scorer scorer(active_kernels(), queries.rows, rows.rows, metric_named(metric));
    hits = scan_chosen(scorer, std::max<int64_t>(0, std::min(k, per_query)), chosen.data(), per_query, pool);
  }
  return as_tuple(std::move(hits), queries.rows.count);
}

// x [n, dim] to unit length in `out`, which may be x; `norms` gets the norms of x.
void normalise(Matrix x, Scores out, nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> norms) {
  const auto count = static_cast<int64_t>(x.shape(0)), dim = static_cast<int64_t>(x.shape(1));
  if (out.shape(0) != x.shape(0) || out.shape(1) != x.shape(1) || norms.shape(0) != x.shape(0)) wrong("normalise: the shapes of x, out and norms do not match");
  nb::gil_scoped_release release;
  const VectorKernels& kernels = active_kernels();
  kernels.squares[0](nullptr, reinterpret_cast<const std::byte*>(x.data()), dim * 4, count, dim, norms.data());
  for (int64_t row = 0; row < count; ++row) {
    float& norm = norms.data()[row];
    norm = std::sqrt(norm);
    const float* from = x.data() + row * dim;
    float* to = out.data() + row * dim;
    if (has_sound_norm(norm)) {
      kernels.divide(from, norm, to, dim);
      continue;
    }
    double squares = 0;  // too long or too short for float32
    for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(from[i]) * from[i];
    if (!(squares > 0 && std::isfinite(squares)))
      wrong("row " + std::to_string(row) + (squares == 0 ? " has a norm of zero: it has no direction" : " holds NaN or infinity"));
    for (int64_t i = 0; i < dim; ++i) to[i] = static_cast<float>(from[i] / std::sqrt(squares));
    norm = static_cast<float>(std::sqrt(squares));
  }
}

using BytesOut = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntsOut = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void encode_rows(Matrix x, const std::string& kind, float threshold, BytesOut codes, FloatsOut norms,
                 std::optional<FloatsOut> scales, std::optional<FloatsOut> offsets, std::optional<IntsOut> sums, Pool& pool) {
  const auto count = static_cast<int64_t>(x.shape(0)), dim = static_cast<int64_t>(x.shape(1));
  const Element element = element_named(kind);
  if (dim < 1 || dim > kMaxDim) wrong("vectors must have 1 to 65,536 dimensions, not " + std::to_string(dim));
  const bool i8 = element == Element::i8, u4 = element == Element::u4;
  const int64_t size = Rows{.dim = dim, .element = element}.size();
  const auto fits = [&](const auto& array) { return array && static_cast<int64_t>(array->shape(0)) == count; };
  if (codes.dtype().bits != 8 || static_cast<int64_t>(codes.shape(0)) != count ||
      static_cast<int64_t>(codes.shape(1)) != size || static_cast<int64_t>(norms.shape(0)) != count ||
      ((i8 || u4) && !fits(scales)) || (u4 && (!fits(offsets) || !fits(sums))) || Rows{.element = element}.is_float())
    wrong("encode: the arrays for codes have the wrong shape");
  const CodesOut out{static_cast<std::byte*>(codes.data()), norms.data(), scales ? scales->data() : nullptr,
                     offsets ? offsets->data() : nullptr, sums ? sums->data() : nullptr};
  nb::gil_scoped_release release;
  encode(element, reinterpret_cast<const std::byte*>(x.data()), count, dim, dim * 4, threshold, out, pool);
}

}  // namespace

void bind_vectors(nb::module_& module) {
  nb::class_<HeldRows>(module, "Rows")
      .def("__init__", &hold, nb::arg("array"), nb::arg("element"), nb::arg("dim"), nb::arg("norms").none() = nb::none(),
           nb::arg("scales").none() = nb::none(), nb::arg("offsets").none() = nb::none(), nb::arg("sums").none() = nb::none());
  module.def("set_level", [](const std::string& level) { set_active(vector_kernels(level_named(level))); });
  module.def("scores", &scores);
  module.def("top_k", &top_k, nb::arg("queries"), nb::arg("rows"), nb::arg("metric"), nb::arg("k"), nb::arg("allowed").none(), nb::arg("pool"));
  module.def("top_k_of", &top_k_of);
  module.def("normalise", &normalise);
  module.def("encode", &encode_rows, nb::arg("x"), nb::arg("kind"), nb::arg("threshold"), nb::arg("codes"), nb::arg("norms"),
             nb::arg("scales").none(), nb::arg("offsets").none(), nb::arg("sums").none(), nb::arg("pool"));
}
