// pool: a team of threads that runs one job at a time. The caller is worker 0. Threads start with the first job, spin
// briefly for the next one, then park; a forked child starts its own.
#pragma once
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

// A hint to the core that this is a waiting loop.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A mutex that is free in a forked child: the parent's thread that held it does not exist there.
class Turn {
 public:
  Turn() = default;
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (Own* last = own_.load(); last && last->process == getpid()) delete last;
  }

  void lock() { own().mutex.lock(); }
  void unlock() { own().mutex.unlock(); }

 private:
  struct Own {
    const int process;
    std::mutex mutex;
  };

  Own& own() {
    Own* found = own_.load(std::memory_order_acquire);
    while (!found || found->process != getpid()) {
      auto* fresh = new Own{getpid(), {}};
      if (own_.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;  // the parent's is leaked
      delete fresh;
    }
    return *found;
  }

  std::atomic<Own*> own_ = nullptr;
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
  Turn turn_;
  std::vector<std::thread>* threads_ = nullptr;
  int owner_ = 0;  // process id that started the threads
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace weft
