// pool: the team in a browser, in place of core/pool.cpp. Other workers of the page run this module on the same memory and come
// in through weft_page_thread; where a page has no shared memory nobody comes, and the caller is the team.
#include "core/pool.h"

#include <algorithm>

namespace weft {

namespace {

// One team for all models of a module: its functions are called by one thread, so that jobs follow each other.
struct Team {
  // The job's number and, in the last 8 bits, how many workers take part; 0 before the first, so that a worker that comes late
  // does not miss it.
  alignas(64) std::atomic<int32_t> word{0};
  alignas(64) std::atomic<int32_t> running{0};
  void (*job)(void*, int) = nullptr;
  void* context = nullptr;
};
Team team;

constexpr int kSpins = 2000;  // of pause_cpu(): about as long as the host takes to wake a worker

void wait_while(std::atomic<int32_t>& value, int32_t old) {
  for (int i = 0; i < kSpins; ++i, pause_cpu())
    if (value.load(std::memory_order_acquire) != old) return;
  while (value.load(std::memory_order_acquire) == old) __builtin_wasm_memory_atomic_wait32(reinterpret_cast<int32_t*>(&value), old, -1);
}

void wake(std::atomic<int32_t>& value) { __builtin_wasm_memory_atomic_notify(reinterpret_cast<int32_t*>(&value), UINT32_MAX); }

}  // namespace

void Pool::run(void (*job)(void*, int), void* context, int workers) {
  workers = std::clamp(workers, 1, size_);
  if (workers == 1) return job(context, 0);
  team.job = job;
  team.context = context;
  team.running.store(workers - 1, std::memory_order_relaxed);
  team.word.store(static_cast<int32_t>(++jobs_ << 8 | static_cast<uint32_t>(workers)), std::memory_order_release);
  wake(team.word);
  job(context, 0);
  for (int32_t left; (left = team.running.load(std::memory_order_acquire)) != 0;) wait_while(team.running, left);
}

Pool::~Pool() = default;

int TeamSizes::pick(int64_t, int most) { return most; }

void TeamSizes::learn(int64_t) {}

}  // namespace weft

// Worker `index`, from 1, of every job for as long as the host lets it run. It needs a stack of its own and nothing else.
extern "C" void weft_page_thread(int index) {
  using weft::team;
  for (int32_t seen = 0;;) {
    weft::wait_while(team.word, seen);
    seen = team.word.load(std::memory_order_acquire);
    if (index >= (seen & 255)) continue;
    team.job(team.context, index);
    if (team.running.fetch_sub(1, std::memory_order_acq_rel) == 1) weft::wake(team.running);
  }
}
