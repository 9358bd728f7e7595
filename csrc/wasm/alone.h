// alone: what the standard library leaves out where there are no threads. Included before everything in the build for browsers,
// so that the core need not know. A mutex is always free, and a thread has done its work when it is made: what is not a kernel
// runs on one thread, and those of the team (pool.cpp) run kernels only.
#pragma once
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#if _LIBCPP_HAS_THREADS
#error "this build has threads: it needs no alone.h"
#endif

namespace std {

struct mutex {
  void lock() {}
  bool try_lock() { return true; }
  void unlock() {}
};

struct thread {
  struct id {
    int number = 0;  // 0: nobody
    bool operator==(const id&) const = default;
  };
  thread() = default;
  template <class Work>
  explicit thread(Work&& work) {
    std::forward<Work>(work)();
  }
  void join() {}
  static unsigned hardware_concurrency() { return 1; }
};

namespace this_thread {
inline thread::id get_id() { return {1}; }
inline void yield() {}
// Only a worker of a team waits, and teams have shared memory. Nobody wakes it.
template <class Time>
void sleep_for(const Time& time) {
  int32_t never = 0;
  __builtin_wasm_memory_atomic_wait32(&never, 0, chrono::nanoseconds(time).count());
}
}  // namespace this_thread

// Values are printed for people who look into a program, never here: without this the module has all of printf.
template <class... Values>
int print_nothing(FILE*, const char*, const Values&...) {
  return 0;
}

// The fewest digits that mean this number. The library's own brings 110 kB of tables, for other formats than this one.
inline to_chars_result shortest_digits(char* first, char* last, double value, chars_format) {
  int size = 0;
  for (int digits = 0; digits < 17; ++digits) {
    size = snprintf(first, static_cast<size_t>(last - first), "%.*e", digits, value);
    double read = 0;
    if (from_chars(first, first + size, read); read == value) break;
  }
  return {first + size, errc{}};
}

}  // namespace std

#define fprintf print_nothing
#define to_chars shortest_digits
