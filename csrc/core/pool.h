// pool: a team of threads that runs one job at a time. The caller is worker 0. Threads start with the first job, spin
// for the next one about as long as the last ones took to come, then park; a forked child starts its own. How large a team a
// step gets is found by measurement (decision 0033).
#pragma once
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
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
#elif defined(__wasm__)
  for (int i = 0; i < 32; ++i) asm volatile("");  // there is no such hint: about as long as those of others
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
  explicit Pool(int threads) : size_(threads < 1 ? 1 : threads > kMost ? kMost : threads) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }
  // Calls job(context, index) on the first `workers` of the team, at most all, and returns when they are done. One job at a
  // time: others wait their turn.
  void run(void (*job)(void* context, int index), void* context, int workers);
  void run(void (*job)(void* context, int index), void* context) { run(job, context, size_); }

 private:
  static constexpr int kMost = 127;
  using Clock = std::chrono::steady_clock;

  void start();
  void serve(int index, uint32_t seen);
  void call(int workers);
  void expect(Clock::duration gap);

  const int size_;
  Turn turn_;
  std::vector<std::thread>* threads_ = nullptr;
  int owner_ = 0;  // process id that started the threads
  void (*job_)(void*, int) = nullptr;
  void* context_ = nullptr;
  // Workers 1, 2 and 3, 4 to 7, 8 to 15 ... wait for a word each, so that those who are not needed sleep on. A word is the
  // job's number and, in its last 8 bits, how many workers take part.
  struct alignas(64) Call {
    std::atomic<uint32_t> word{0};
  };
  Call calls_[7];
  uint32_t jobs_ = 0;
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  Clock::time_point ended_{};  // the last job
  Clock::duration gap_{};  // between jobs, smoothed
  std::atomic<int64_t> spin_ns_{0};  // of waiting workers
};

// How many workers a step gets, found by measurement. More workers share the work and meet more slowly: a step of one token on
// sixteen cores is often quickest with eight, and on a machine whose host takes cores away, with fewer. The team's size
// changes no bit of a result.
class TeamSizes {
 public:
  // How many of `most` workers a step of this many tokens should have. Always all of a small team.
  int pick(int64_t tokens, int most);
  // What the step took that pick() was last asked about.
  void learn(int64_t nanoseconds);

 private:
  static constexpr int kSizes = 16, kKinds = 24;

  // Steps of about as many tokens. Sizes are most, 3/4, 1/2, 3/8, 1/4 ... of it.
  struct Kind {
    std::array<double, kSizes> cost{};  // nanoseconds a token, smoothed; 0: not tried
    int best = -1, tried = 0;  // tried: the neighbour of `best` that is on trial
    int steps = 0, pause = 0;  // left of this trial, or until the next one; the length of that pause
    bool trial = false, down = false;
  };

  void conclude(Kind& kind);

  std::array<Kind, kKinds> kinds_{};
  std::array<int, kSizes> sizes_{};
  int count_ = 0, most_ = 0;
  Kind* last_ = nullptr;
  int64_t tokens_ = 1;
};

}  // namespace weft
