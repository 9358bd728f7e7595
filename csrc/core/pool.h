// pool: a team of threads that runs one job at a time. The caller is worker 0. Threads start with the first job, spin
// briefly for the next one, then park; a forked child starts its own.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

// Everyone of the team waits for everyone. Spins, then sleeps: on a machine with fewer free cores than workers a pure
// spin would burn the very core the last worker needs.
class Barrier {
 public:
  void reset(int count) {
    count_ = count;
    waiting_.store(0, std::memory_order_relaxed);
  }
  void wait();

 private:
  int count_ = 1;
  std::atomic<int> waiting_{0};
  std::atomic<uint32_t> round_{0};
};

class Pool {
 public:
  explicit Pool(int threads) : size_(threads < 1 ? 1 : threads) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }
  // Calls job(context, index) on every worker and returns when all are done. One job at a time: others wait their turn.
  void run(void (*job)(void* context, int index), void* context);

 private:
  void start();
  void serve(int index, uint32_t seen);

  const int size_;
  std::mutex turn_;
  std::vector<std::thread>* threads_ = nullptr;
  int owner_ = 0;  // process id that started the threads
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace weft
