#include "core/pool.h"

#include <unistd.h>

namespace weft {

// About 20 µs of spinning: longer than the gap between two steps of a busy engine, short enough not to be noticed.
static constexpr int kSpins = 4000;

static inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class T>
static void wait_while(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Barrier::wait() {
  if (count_ == 1) return;
  uint32_t round = round_.load(std::memory_order_acquire);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    waiting_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    round_.notify_all();
  } else {
    wait_while(round_, round);
  }
}

void Pool::start() {
  threads_ = new std::vector<std::thread>;
  owner_ = getpid();
  stop_ = false;
  running_ = 0;
  uint32_t seen = epoch_.load();
  for (int index = 1; index < size_; ++index) threads_->emplace_back([this, index, seen] { serve(index, seen); });
}

void Pool::serve(int index, uint32_t seen) {
  for (;;) {
    wait_while(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    job_(context_, index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

void Pool::run(void (*job)(void*, int), void* context) {
  std::lock_guard<std::mutex> lock(turn_);
  // After a fork the threads belong to the parent: their handles are left behind, never joined.
  if (size_ > 1 && (!threads_ || owner_ != getpid())) start();
  job_ = job;
  context_ = context;
  running_.store(size_ - 1, std::memory_order_relaxed);
  if (size_ > 1) {
    epoch_.fetch_add(1, std::memory_order_acq_rel);
    epoch_.notify_all();
  }
  job(context, 0);
  for (int left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_while(running_, left);
}

Pool::~Pool() {
  if (!threads_ || owner_ != getpid()) return;
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  epoch_.notify_all();
  for (std::thread& thread : *threads_) thread.join();
  delete threads_;
}

}  // namespace weft
