#include "core/pool.h"

namespace weft {

// About 20 µs of spinning: longer than the gap between two steps of a busy engine, short enough not to be noticed.
static constexpr int kSpins = 4000;

template <class T>
static void wait_while(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
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
  std::lock_guard<Turn> lock(turn_);
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
