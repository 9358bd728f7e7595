// alone: what the standard library leaves out where there are no threads. Included before everything in the build for browsers,
// so that the core need not know. A mutex is always free, and a thread has done its work when it is made.
#pragma once
#include <cstdio>
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
  thread() = default;
  template <class Work>
  explicit thread(Work&& work) {
    std::forward<Work>(work)();
  }
  void join() {}
  static unsigned hardware_concurrency() { return 1; }
};

namespace this_thread {
inline void yield() {}
template <class Time>
void sleep_for(const Time&) {}
}  // namespace this_thread

// Values are printed for people who look into a program, never here: without this the module has all of printf.
template <class... Values>
int print_nothing(FILE*, const char*, const Values&...) {
  return 0;
}

}  // namespace std

#define fprintf print_nothing
