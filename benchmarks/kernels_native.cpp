// kernels_native: speed of the matrix products alone, one thread, per level. Build and run by hand:
//   tools/native-bench [matmul | matmul_q] [level] [type]
// matmul with many rows is bound by arithmetic (GFLOP/s); with one row by memory: the weights are a set larger than the
// second-level cache, walked one after another (GB/s of packed weight).
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "core/levels.h"
#include "core/weight.h"
#include "pack/panels.h"

using namespace weft;

namespace {

struct Case {
  DType dtype;
  int64_t rows, cols, depth;  // M, N, K
};

// Time of this thread alone: what else the machine does meanwhile does not count.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Weights enough for `total` bytes, each a matrix of the case. Every byte is 0x3C: an ordinary number as f32, f16, bf16
// and as a code, so that no subnormal slows the arithmetic down.
std::vector<Weight> make_weights(const Case& c, size_t total) {
  std::vector<Weight> set;
  const size_t bytes = panels_bytes(c.dtype, c.cols, c.depth);
  do {
    Weight weight;
    weight.dtype = c.dtype, weight.layout = Layout::panels, weight.rows = c.cols, weight.cols = c.depth;
    weight.bytes = bytes, weight.owned = Memory(bytes), weight.data = weight.owned.data();
    std::memset(weight.owned.data(), 0x3C, bytes);
    set.push_back(std::move(weight));
  } while (set.size() * bytes < total);
  return set;
}

struct Bench {
  const Level& level;
  Memory scratch{kScratchBytes};

  void run(const char* op, const Operand* in, int n_in, const Operand& out, const Attr& attr) {
    std::atomic<int64_t> counter{0};
    find_kernel(level, op)({in, &out, &attr, n_in, 1, 1}, {0, 1, &counter, scratch.data()});
  }

  // One product per weight of the set, at least 0.2 s; the best of five rounds counts.
  void measure(const Case& c, bool quantised) {
    std::vector<Weight> set = make_weights(c, c.rows == 1 ? size_t{24} << 20 : 1);
    std::vector<float> x(static_cast<size_t>(c.rows * c.depth), 0.5f), y(static_cast<size_t>(c.rows * c.cols));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) * 0.1f - 0.8f;
    Operand in[2] = {{reinterpret_cast<std::byte*>(x.data()), DType::f32, 2, {c.rows, c.depth}}, {}};
    Operand out{reinterpret_cast<std::byte*>(y.data()), DType::f32, 2, {c.rows, c.cols}};
    std::vector<std::byte> codes(bytes_of(DType::a8_32, x.size()));
    const Attr none{"activation", 0};
    if (quantised) {
      const int block = info(c.dtype).block;
      Operand a8{codes.data(), block == 32 ? DType::a8_32 : DType::a8_256, 2, {c.rows, c.depth}};
      run("quantise_rows", in, 1, a8, {"block", static_cast<double>(block)});
      in[0] = a8;
    }
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      int64_t done = 0;
      double start = seconds(), end;
      do {
        for (const Weight& weight : set) {
          in[1].weight = &weight;
          run(quantised ? "matmul_q" : "matmul", in, 2, out, none);
          ++done;
        }
      } while ((end = seconds()) < start + 0.05);
      best = std::min(best, (end - start) / static_cast<double>(done));
    }
    const double flops = 2.0 * static_cast<double>(c.rows * c.cols * c.depth);
    std::printf("%-8s %-7s M=%-4ld N=%-5ld K=%-5ld %9.2f us %8.1f GFLOP/s %7.2f GB/s\n", level.name,
                std::string(info(c.dtype).name).c_str(), static_cast<long>(c.rows), static_cast<long>(c.cols),
                static_cast<long>(c.depth), best * 1e6, flops / best * 1e-9,
                static_cast<double>(set[0].bytes) / best * 1e-9);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string op = argc > 1 ? argv[1] : "matmul", wanted = argc > 2 ? argv[2] : "";
  const bool quantised = op == "matmul_q";
  std::vector<DType> types;
  for (const char* name : quantised ? std::vector<const char*>{"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "q2_k",
                                                               "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"}
                                    : std::vector<const char*>{"f32", "f16", "bf16"})
    if (argc < 4 || std::strcmp(argv[3], name) == 0) types.push_back(dtype_named(name));
  for (const Level& level : levels()) {
    if (!level.present() || (wanted.empty() ? level.name == std::string("scalar") : wanted != level.name)) continue;
    Bench bench{level};
    for (DType dtype : types)
      for (auto [n, k] : {std::pair<int64_t, int64_t>{384, 384}, {1536, 384}, {384, 1536}, {2048, 2048}}) {
        if (quantised && k % info(dtype).block) continue;
        for (int64_t m : {1, 8, 64, 512})
          if (m * n * k < int64_t{1} << 30) bench.measure({dtype, m, n, k}, quantised);
      }
  }
}
