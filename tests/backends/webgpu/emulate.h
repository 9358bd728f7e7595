// emulate: CUDA's threads on a processor, so that kernels can be tested where no GPU is: a group's threads take turns
// in one thread of the machine, from one barrier to the next. Sums of matrix units are exact, then rounded. What a GPU may
// not do ends a kernel: memory beyond a buffer (pages around it cannot be touched), words that are not aligned, indices
// beyond an array and shifts by 32 (the compiler's checks), and more than the 48 KB of shared memory that a group has unasked.
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define WEFT_EMULATED
#define FN inline
#define CONST static constexpr
#define __shared__ static __attribute__((section("shared_memory")))
#define __global__
#define __launch_bounds__(x)
#define __restrict__
#define LAUNCHED(name, quads) static uint4 name[quads]

typedef unsigned int u32;
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct Place { u32 x, y, z; };
static Place threadIdx, blockIdx, gridDim;

constexpr u32 MOST = 1024, STACK = 256 << 10;
struct Copy { void* to; const void* from; };
struct Thread {
  ucontext_t context;
  bool done;
  std::vector<std::vector<Copy>> lots;  // not done yet, the last one not ended
  const u32* turn;  // of what it waits for; it is left alone while that is `seen`
  u32 seen;
};
static Thread threads[MOST];
static char* stacks;  // memory that no thread touched is not there
static u32 stacked;
static ucontext_t scheduler;
static u32 count, current, alive, arrived, turn;

inline void yield() {
  u32 me = current;
  swapcontext(&threads[me].context, &scheduler);
  current = me;
}
inline void wait_until_changed(const u32& turn) {
  Thread& me = threads[current];
  me.turn = &turn;
  me.seen = turn;
  yield();
  me.turn = nullptr;
}
inline void wait_for_all() {
  if (++arrived == alive) {
    arrived = 0;
    turn++;
    return;
  }
  wait_until_changed(turn);
}
inline void w_workgroupBarrier() { wait_for_all(); }
inline void everybody_sees() {}
inline u32 add_one(u32* counter, u32 limit) {
  u32 before = *counter;
  *counter = before >= limit - 1 ? 0 : before + 1;
  return before;
}
inline float fresh(const u32* from) { float f; std::memcpy(&f, from, 4); return f; }
inline void __syncthreads() { wait_for_all(); }

// Copies are done as late as they may be.
inline void copy16(uint4* to, const u32* from) { threads[current].lots.back().push_back({to, from}); }
inline void end_lot() { threads[current].lots.emplace_back(); }
template <u32 N>
inline void wait_but() {
  auto& lots = threads[current].lots;
  while (lots.size() > N + 1) {
    for (const Copy& one : lots.front()) std::memcpy(one.to, one.from, 16);
    lots.erase(lots.begin());
  }
}

inline float __uint_as_float(u32 x) { float f; std::memcpy(&f, &x, 4); return f; }
inline u32 __float_as_uint(float f) { u32 x; std::memcpy(&x, &f, 4); return x; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline int __clz(int x) { return x ? __builtin_clz(u32(x)) : 32; }
inline int __popc(u32 x) { return __builtin_popcount(x); }

// What the lanes of a warp give and get.
struct Warp {
  u32 arrived, turn;
  float d[32][4], value[32];
  u32 a[32][4], b[32][2];
};
static Warp warps[MOST / 32];

template <class Work>
inline void together(Warp& warp, Work work) {
  if (++warp.arrived == 32) {
    work();
    warp.arrived = 0;
    warp.turn++;
    return;
  }
  wait_until_changed(warp.turn);
}

inline float half_value(u32 bits) {
  u32 size = bits & 0x7fff;
  float wide = size < 0x400 ? float(size) * 5.9604644775390625e-8f : __uint_as_float((size << 13) + 0x38000000u);
  if (size >= 0x7c00) wide = __uint_as_float((size << 13) + 0x70000000u);
  return bits & 0x8000 ? -wide : wide;
}
inline u32 half_bits(float value) {
  u32 word = __float_as_uint(value), sign = (word >> 16) & 0x8000u, size = word & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7e00u;
  if (size < 0x38800000u) return sign | u32(std::rint(__uint_as_float(size) * 16777216.0f));
  u32 rounded = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
  return sign | (rounded < 0x7c00u ? rounded : 0x7c00u);
}
inline u32 bfloat_bits(float value) {
  u32 word = __float_as_uint(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return (word >> 16) | 0x40u;
  return (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
}
inline u32 halves(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
inline u32 bfloats(float low, float high) { return bfloat_bits(low) | bfloat_bits(high) << 16; }
inline u32 halves_less(u32 a, u32 b) {
  return halves(half_value(a & 0xffff) - half_value(b & 0xffff), half_value(a >> 16) - half_value(b >> 16));
}
inline u32 bytes_of(u32 a, u32 b, u32 chosen) {
  uint64_t all = uint64_t(b) << 32 | a;
  u32 found = 0;
  for (u32 i = 0; i < 4; i++) found |= u32(all >> (8 * (chosen >> (4 * i) & 7)) & 0xff) << (8 * i);
  return found;
}
inline float from_lane(float value, u32 mask) {
  u32 thread = threadIdx.x, lane = thread % 32;
  Warp& warp = warps[thread / 32];
  warp.value[lane] = value;
  together(warp, [] {});
  float found = warp.value[lane ^ mask];
  together(warp, [] {});
  return found;
}

// d += a b over `depth` columns: left(warp, row, k) is a number of a, right(warp, col, k) one of b.
template <class Left, class Right>
inline void product(u32 depth, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Left left, Right right) {
  u32 thread = threadIdx.x, lane = thread % 32;
  Warp& warp = warps[thread / 32];
  std::memcpy(warp.d[lane], d, sizeof d);
  std::memcpy(warp.a[lane], a, sizeof a);
  warp.b[lane][0] = b0;
  warp.b[lane][1] = b1;
  together(warp, [&] {
    for (u32 row = 0; row < 16; row++) {
      for (u32 col = 0; col < 8; col++) {
        double sum = 0;
        for (u32 k = 0; k < depth; k++) sum += left(warp, row, k) * right(warp, col, k);
        float& to = warp.d[row % 8 * 4 + col / 2][row / 8 * 2 + col % 2];
        to = float(to + sum);
      }
    }
  });
  std::memcpy(d, warp.d[lane], sizeof d);
}
template <class Value>
inline void product_of_halves(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Value value) {
  product(
      16, d, a, b0, b1,
      [&](const Warp& warp, u32 row, u32 k) {
        return double(value(warp.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> (k % 2 * 16) & 0xffff));
      },
      [&](const Warp& warp, u32 col, u32 k) {
        return double(value(warp.b[col * 4 + k % 8 / 2][k / 8] >> (k % 2 * 16) & 0xffff));
      });
}
inline void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { product_of_halves(d, a, b0, b1, half_value); }
inline void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  product_of_halves(d, a, b0, b1, [](u32 bits) { return __uint_as_float(bits << 16); });
}
inline void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  auto value = [](u32 bits) { return double(__uint_as_float(bits & 0xffffe000u)); };
  product(
      8, d, a, b0, b1, [&](const Warp& warp, u32 row, u32 k) { return value(warp.a[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]); },
      [&](const Warp& warp, u32 col, u32 k) { return value(warp.b[col * 4 + k % 4][k / 4]); });
}

template <class Call>
static void run_groups(u32 across, u32 down, u32 size, Call call) {
  static Call* work;
  work = &call;
  count = size;
  if (size > stacked) {
    std::free(stacks);
    stacks = (char*)std::malloc(size_t(size) * STACK);
    stacked = size;
  }
  gridDim = {across, down, 1};
  for (u32 group = 0; group < across * down; group++) {
    blockIdx = {group % across, group / across, 0};
    alive = size;
    arrived = 0;
    for (Warp& warp : warps) warp.arrived = 0;
    for (u32 i = 0; i < size; i++) {
      threads[i].done = false;
      threads[i].lots.assign(1, {});
      threads[i].turn = nullptr;
      getcontext(&threads[i].context);
      threads[i].context.uc_stack.ss_sp = &stacks[size_t(i) * STACK];
      threads[i].context.uc_stack.ss_size = STACK;
      threads[i].context.uc_link = &scheduler;
      makecontext(&threads[i].context, (void (*)())(+[] {
                    (*work)();
                    threads[current].done = true;
                    alive--;
                    if (alive && arrived == alive) {
                      arrived = 0;
                      turn++;
                    }
                  }), 0);
    }
    while (alive) {
      for (u32 i = 0; i < size; i++) {
        if (threads[i].done || (threads[i].turn && *threads[i].turn == threads[i].seen)) continue;
        current = i;
        threadIdx = {i, 0, 0};
        swapcontext(&scheduler, &threads[i].context);
      }
    }
  }
}

template <class Params, class... Types, size_t... I>
static void run_entry(void (*entry)(Params, Types...), const void* params, void* const* places, u32 across, u32 down,
                      u32 size, std::index_sequence<I...>) {
  Params given;
  std::memcpy((void*)&given, params, sizeof given);
  run_groups(across, down, size, [=] { entry(given, (Types)places[I]...); });
}
template <class Params, class... Types>
static void run_entry(void (*entry)(Params, Types...), const void* params, void* const* places, u32 across, u32 down,
                      u32 size) {
  run_entry(entry, params, places, across, down, size, std::index_sequence_for<Types...>());
}
static sigjmp_buf way_out;
static void end_with(int signal) { siglongjmp(way_out, signal); }
// The signal that ended the kernel, or 0.
template <class Work>
static int guarded(Work work) {
  static const int kinds[] = {SIGSEGV, SIGBUS, SIGILL};
  struct sigaction before[3], mine = {};
  mine.sa_handler = end_with;
  for (int i = 0; i < 3; i++) sigaction(kinds[i], &mine, &before[i]);
  int found = sigsetjmp(way_out, 1);
  if (found == 0) work();
  for (int i = 0; i < 3; i++) sigaction(kinds[i], &before[i], nullptr);
  return found;
}
extern char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));
#define WEFT_RUN                                                                                                     \
  extern "C" int run(u32 across, u32 down, u32 size, const void* params, void* const* places) {                     \
    if (__stop_shared_memory - __start_shared_memory > 48 << 10) return -1;                                         \
    return guarded([=] { run_entry(&entry, params, places, across, down, size); });                                 \
  }
