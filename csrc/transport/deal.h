// deal: tasks handed out to a team.
#pragma once
#include <atomic>

#include "core/pool.h"

namespace weft {

constexpr int64_t kAloneNumbers = 100'000;  // costs that are read about as fast as a second thread wakes up

// Calls work(worker, task) for every task number below `tasks`; by the caller alone where there are few `numbers`.
template <class F>
void deal_tasks(int64_t tasks, int64_t numbers, Pool& pool, F work) {
  if (numbers < kAloneNumbers || pool.size() == 1 || tasks < 2) {
    for (int64_t task = 0; task < tasks; ++task) work(0, task);
    return;
  }
  std::atomic<int64_t> counter{0};
  auto job = [&](int worker) {
    for (int64_t task; (task = counter.fetch_add(1, std::memory_order_relaxed)) < tasks;) work(worker, task);
  };
  pool.run([](void* context, int index) { (*static_cast<decltype(job)*>(context))(index); }, &job);
}

}  // namespace weft
