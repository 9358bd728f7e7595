#include "core/pool.h"

#include <algorithm>
#include <bit>

namespace weft {

using namespace std::chrono_literals;

// Waking a parked team takes longer than many a step. Jobs that follow each other this closely find it spinning; between
// others it spins briefly.
static constexpr auto kClose = 500us, kBrief = 20us;

// Which word a worker waits for.
static size_t call_of(int index) { return static_cast<size_t>(std::bit_width(static_cast<unsigned>(index)) - 1); }

template <class T>
static void wait_while(std::atomic<T>& value, T old, std::chrono::nanoseconds spin) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + spin;
  for (int i = 1; value.load(std::memory_order_acquire) == old; ++i) {
    pause_cpu();
    if (i % 128) continue;
    if (Clock::now() > until) break;
    std::this_thread::yield();  // somebody else may need the core
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

void Pool::expect(Clock::duration gap) {
  gap_ = (3 * gap_ + std::min<Clock::duration>(gap, 4 * kClose)) / 4;
  const Clock::duration spin = gap_ <= kClose ? std::max<Clock::duration>(2 * gap_, kBrief) : kBrief;
  spin_ns_.store(std::chrono::nanoseconds(spin).count(), std::memory_order_relaxed);
}

void Pool::start() {
  threads_ = new std::vector<std::thread>;
  owner_ = getpid();
  stop_ = false;
  running_ = 0;
  for (int index = 1; index < size_; ++index) {
    const uint32_t seen = calls_[call_of(index)].word.load();
    threads_->emplace_back([this, index, seen] { serve(index, seen); });
  }
}

// Wakes the workers from 1 on, at least `workers` of the team with the caller.
void Pool::call(int workers) {
  ++jobs_;
  for (int first = 1; first < workers; first *= 2) {
    std::atomic<uint32_t>& to = calls_[call_of(first)].word;
    uint32_t word = jobs_ << 8 | static_cast<uint32_t>(workers);
    if (word == to.load(std::memory_order_relaxed)) word ^= 1u << 31;  // the number has come round: let them see a change
    to.store(word, std::memory_order_release);
    to.notify_all();
  }
}

void Pool::serve(int index, uint32_t seen) {
  std::atomic<uint32_t>& word = calls_[call_of(index)].word;
  for (;;) {
    wait_while(word, seen, std::chrono::nanoseconds(spin_ns_.load(std::memory_order_relaxed)));
    seen = word.load(std::memory_order_acquire);
    if (index >= static_cast<int>(seen & 255)) continue;
    if (stop_.load(std::memory_order_relaxed)) return;
    job_(context_, index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

void Pool::run(void (*job)(void*, int), void* context, int workers) {
  std::lock_guard<Turn> lock(turn_);
  workers = std::clamp(workers, 1, size_);
  // After a fork the threads belong to the parent: their handles are left behind, never joined.
  if (size_ > 1 && (!threads_ || owner_ != getpid())) start();
  expect(Clock::now() - ended_);
  job_ = job;
  context_ = context;
  running_.store(workers - 1, std::memory_order_relaxed);
  call(workers);
  job(context, 0);
  for (int left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_while(running_, left, kBrief);
  ended_ = Clock::now();
}

Pool::~Pool() {
  if (!threads_ || owner_ != getpid()) return;
  stop_ = true;
  call(size_);
  for (std::thread& thread : *threads_) thread.join();
  delete threads_;
}

static constexpr int kSmallTeam = 4;  // not worth a trial
static constexpr int kFirstTeam = 8, kFewTokens = 32;  // what steps of few tokens start with
static constexpr int kTrial = 4;  // steps of a trial
static constexpr int kShortest = 32, kLongest = 2048;  // steps between trials
static constexpr double kBetter = 0.97;  // a neighbour must be this much quicker

int TeamSizes::pick(int64_t tokens, int most) {
  last_ = nullptr;
  if (most <= kSmallTeam) return most;
  if (most != most_) {
    *this = TeamSizes();
    most_ = most;
    for (int halves = most; halves >= 1 && count_ < kSizes; halves /= 2) {
      sizes_[static_cast<size_t>(count_++)] = halves;
      if (halves * 3 / 4 > halves / 2 && count_ < kSizes) sizes_[static_cast<size_t>(count_++)] = halves * 3 / 4;
    }
  }
  tokens_ = std::max<int64_t>(tokens, 1);
  Kind& kind = kinds_[static_cast<size_t>(std::min<int>(std::bit_width(static_cast<uint64_t>(tokens_)), kKinds - 1))];
  last_ = &kind;
  if (kind.best < 0) {
    kind.best = 0;
    while (tokens_ < kFewTokens && kind.best + 1 < count_ && sizes_[static_cast<size_t>(kind.best)] > kFirstTeam) ++kind.best;
    kind.steps = kind.pause = kShortest;
  }
  if (kind.steps-- == 0) {
    if (kind.trial) {
      conclude(kind);
    } else {
      kind.down = !kind.down;
      const int next = kind.best + (kind.down ? 1 : -1);
      kind.trial = next >= 0 && next < count_;
      if (kind.trial) kind.tried = next;
    }
    kind.steps = (kind.trial ? kTrial : kind.pause) - 1;
  }
  return sizes_[static_cast<size_t>(kind.trial ? kind.tried : kind.best)];
}

void TeamSizes::conclude(Kind& kind) {
  kind.trial = false;
  const bool better = kind.cost[static_cast<size_t>(kind.tried)] < kBetter * kind.cost[static_cast<size_t>(kind.best)];
  kind.pause = better ? kShortest : std::min(2 * kind.pause, kLongest);
  if (!better) return;
  kind.best = kind.tried;
  kind.down = !kind.down;  // go on in this direction
}

void TeamSizes::learn(int64_t nanoseconds) {
  if (!last_) return;
  double& cost = last_->cost[static_cast<size_t>(last_->trial ? last_->tried : last_->best)];
  const double sample = static_cast<double>(nanoseconds) / static_cast<double>(tokens_);
  // One step that was interrupted counts little.
  cost = cost == 0 ? sample : cost + (std::min(sample, 2 * cost) - cost) / 8;
}

}  // namespace weft
