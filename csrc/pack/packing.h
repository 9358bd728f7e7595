// packing: the matrices of a model, packed by a team while the caller does something else. The result does not depend
// on which worker packs which part.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/dtype.h"

namespace weft {

// pack_panels, pack_pairs or pack_split.
using PackPart = void (*)(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order,
                          int64_t rows, int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end);

// One matrix: the arguments of PackPart but for the range. The memory behind the pointers outlives the packing.
struct PackJob {
  PackPart pack;
  DType dtype;
  const std::byte* rows_data;
  size_t row_bytes;
  const int32_t* row_order;
  int64_t rows, cols;
  std::byte* out;
};

class Packing {
 public:
  // `files` are mapped files; the pages that a part has read are dropped after it, because nothing reads them twice.
  explicit Packing(int threads, std::vector<std::span<const std::byte>> files = {});
  // Parts that have not started are skipped.
  ~Packing();
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  void add(const PackJob& job);  // before start, or Error(input)
  void start();                  // all threads but one begin
  // The caller is the last worker. Returns when all is packed; rethrows a worker's error. Any number of threads may call it.
  void finish();

 private:
  struct Part {
    size_t job;
    int64_t begin, end;
  };
  void work();
  void run(const Part& part);
  void give_back(const Part& part) const;
  void join();

  const int threads_;
  const std::vector<std::span<const std::byte>> files_;
  std::vector<PackJob> jobs_;
  std::vector<Part> parts_;
  std::vector<std::thread> team_;
  bool started_ = false;
  std::atomic<size_t> next_{0};
  std::mutex turn_, ending_;
  std::exception_ptr error_;
};

}  // namespace weft
