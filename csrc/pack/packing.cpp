#include "pack/packing.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/memory.h"
#include "pack/formats.h"

namespace weft {

// Bytes of the file per part: enough that handing out parts costs nothing, few enough that the last parts end together.
static constexpr size_t kPartBytes = size_t{256} << 10;

Packing::Packing(int threads, std::vector<std::span<const std::byte>> files)
    : threads_(threads), files_(std::move(files)) {}

Packing::~Packing() {
  next_.store(parts_.size());
  join();
}

void Packing::add(const PackJob& job) {
  if (started_) fail(ErrorKind::input, "pack", "this packing has started; create another one for more weights");
  const int64_t panels = (job.rows + kPanelRows - 1) / kPanelRows;
  const auto step = std::max<int64_t>(1, static_cast<int64_t>(kPartBytes / (job.row_bytes * kPanelRows)));
  for (int64_t begin = 0; begin < panels; begin += step)
    parts_.push_back({jobs_.size(), begin, std::min(begin + step, panels)});
  jobs_.push_back(job);
}

void Packing::start() {
  started_ = true;
  const size_t helpers = std::min(parts_.size(), static_cast<size_t>(std::max(1, threads_)) - 1);
  while (team_.size() < helpers) team_.emplace_back([this] { work(); });
}

void Packing::finish() {
  work();
  std::lock_guard<std::mutex> lock(ending_);
  join();
  if (error_) std::rethrow_exception(error_);
}

void Packing::work() {
  for (size_t index; (index = next_.fetch_add(1)) < parts_.size();) {
    try {
      run(parts_[index]);
    } catch (...) {
      std::lock_guard<std::mutex> lock(turn_);
      error_ = std::current_exception();
      next_.store(parts_.size());
    }
  }
}

void Packing::run(const Part& part) {
  const PackJob& job = jobs_[part.job];
  job.pack(job.dtype, job.rows_data, job.row_bytes, job.row_order, job.rows, job.cols, job.out, part.begin, part.end);
  give_back(part);
}

void Packing::give_back(const Part& part) const {
  const PackJob& job = jobs_[part.job];
  int64_t first = part.begin * kPanelRows, last = std::min(part.end * kPanelRows, job.rows) - 1;
  if (job.row_order) {
    const auto [low, high] = std::minmax_element(job.row_order + first, job.row_order + last + 1);
    first = *low, last = *high;
  }
  drop_mapped(files_, job.rows_data + static_cast<size_t>(first) * job.row_bytes,
              static_cast<size_t>(last + 1 - first) * job.row_bytes);
}

void Packing::join() {
  for (std::thread& worker : team_) worker.join();
  team_.clear();
}

}  // namespace weft
