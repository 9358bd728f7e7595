// emulate: CUDA's threads on a processor, so that kernels can be tested where no GPU is: a group's threads take turns
// in one thread of the machine, from one barrier to the next. Sums of matrix units are exact, then rounded. What a GPU may
// not do ends a kernel: memory beyond a buffer (pages around it cannot be touched), words that are not aligned, indices
// beyond an array and shifts by 32 (the compiler's checks), and more than the 48 KB of shared memory that a group has unasked.
// Workgroups of a cluster run at once, in the same way.
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
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
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define LAUNCHED(name, quads) static __attribute__((section("launched_memory"))) uint4 name[quads]

typedef unsigned int u32;
struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct Place { u32 x, y, z; };
static Place threadIdx, blockIdx, gridDim;

typedef unsigned long long u64;
extern char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));
extern char __start_launched_memory[] __attribute__((weak, visibility("hidden")));
extern char __stop_launched_memory[] __attribute__((weak, visibility("hidden")));

constexpr u32 MOST = 8 * 1024, STACK = 256 << 10, MEETINGS = 16;
struct Copy { void* to; const void* from; };
struct Thread {
  ucontext_t context;
  bool done;
  std::vector<std::vector<Copy>> lots;  // not done yet, the last one not ended
  const u32* turn;  // of what it waits for; it is left alone while that is `seen`
  u32 seen, met;  // met: the turn of the cluster when it arrived there
};
struct Meeting { u32 arrived, turn; };
// A workgroup. Those of a cluster take turns; what each has in its memory is kept here while another one runs.
struct Group {
  u32 alive;
  Meeting all, teams[MEETINGS];
  std::vector<char> memory, launched;
};
static Thread threads[MOST];
static Group groups[8];
static Meeting cluster;
static char* stacks;  // memory that no thread touched is not there
static u32 stacked;
static ucontext_t scheduler;
static u32 count, current, running, alive, happened;  // threads of a group, a thread, its group; of the cluster

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
inline void meet(Meeting& meeting, u32 size) {
  if (++meeting.arrived == size) {
    meeting.arrived = 0;
    meeting.turn++;
    return;
  }
  wait_until_changed(meeting.turn);
}
inline void wait_for_all() { meet(groups[running].all, groups[running].alive); }
inline void w_workgroupBarrier() { wait_for_all(); }
inline void team_wait(u32 team, u32 size) { meet(groups[running].teams[team], size); }
inline void everybody_sees() {}
inline u32 add_one(u32* counter, u32 limit) {
  u32 before = *counter;
  *counter = before >= limit - 1 ? 0 : before + 1;
  return before;
}
inline float fresh(const u32* from) { float f; std::memcpy(&f, from, 4); return f; }
inline void __syncthreads() { wait_for_all(); }

// Clusters. A gate has the bytes that it still expects.
inline void arrive() {
  threads[current].met = cluster.turn;
  if (++cluster.arrived == alive) {
    cluster.arrived = 0;
    cluster.turn++;
  }
}
inline void all_arrived() {
  while (cluster.turn == threads[current].met) wait_until_changed(cluster.turn);
}
inline void expect(u64* gate, u32 bytes) { *gate = bytes; }
// Where another group of the cluster has what this one has at a place.
inline char* far(void* at, u32 rank) {
  char* place = (char*)at;
  if (rank == running) return place;
  if (place >= __start_shared_memory && place < __stop_shared_memory) return &groups[rank].memory[place - __start_shared_memory];
  return &groups[rank].launched[place - __start_launched_memory];
}
inline void send_all(void* to, u32 rank, const void* from, u32 bytes, u64* gate) {
  std::memcpy(far(to, rank), from, bytes);
  u64 left;
  std::memcpy(&left, far(gate, rank), sizeof left);
  left -= bytes;
  std::memcpy(far(gate, rank), &left, sizeof left);
  happened++;
}
inline void send(float* to, u32 rank, float value, u64* gate) { send_all(to, rank, &value, sizeof value, gate); }
inline void fetch(void* to, const u32* from, u32 bytes, u64* gate) { send_all(to, running, from, bytes, gate); }
inline void sendable() {}
inline void wait_for(u64* gate) {
  while (*gate) wait_until_changed(happened);
}
inline void those_before_end() {}
inline void those_after_begin() {}

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
inline float lane_value(float value, u32 from) {
  Warp& warp = warps[current / 32];
  warp.value[current % 32] = value;
  together(warp, [] {});
  float found = warp.value[from];
  together(warp, [] {});
  return found;
}
inline float from_lane(float value, u32 mask) { return lane_value(value, current % 32 ^ mask); }
inline float from_lower(float value, u32 apart) {
  u32 lane = current % 32;
  return lane_value(value, lane < apart ? lane : lane - apart);
}
inline float from_last(float value) { return lane_value(value, 31); }
inline void warp_wait() {
  together(warps[current / 32], [] {});
}

// d += a b over `depth` columns: left(warp, row, k) is a number of a, right(warp, col, k) one of b.
template <class Left, class Right>
inline void product(u32 depth, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Left left, Right right) {
  u32 lane = current % 32;
  Warp& warp = warps[current / 32];
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

inline void exchanged(std::vector<char>& kept, char* start, char* stop) {
  kept.resize(stop - start);
  std::swap_ranges(kept.begin(), kept.end(), start);
}

// Groups of `together` run at once; the others one after another.
template <class Call>
static void run_groups(u32 across, u32 down, u32 size, u32 together, Call call) {
  static Call* work;
  work = &call;
  count = size;
  if (size * together > stacked) {
    std::free(stacks);
    stacks = (char*)std::malloc(size_t(size) * together * STACK);
    stacked = size * together;
  }
  gridDim = {across, down, 1};
  for (u32 first = 0; first < across * down; first += together) {
    alive = size * together;
    cluster = {};
    for (u32 g = 0; g < together; g++) {
      groups[g].alive = size;
      groups[g].all = {};
      for (Meeting& team : groups[g].teams) team = {};
      groups[g].memory.resize(__stop_shared_memory - __start_shared_memory);
      groups[g].launched.resize(__stop_launched_memory - __start_launched_memory);
    }
    for (Warp& warp : warps) warp.arrived = 0;
    for (u32 i = 0; i < size * together; i++) {
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
                    Group& mine = groups[running];
                    if (--mine.alive && mine.all.arrived == mine.alive) {
                      mine.all.arrived = 0;
                      mine.all.turn++;
                    }
                    if (alive && cluster.arrived == alive) {
                      cluster.arrived = 0;
                      cluster.turn++;
                    }
                  }), 0);
    }
    while (alive) {
      for (u32 g = 0; g < together; g++) {
        running = g;
        blockIdx = {(first + g) % across, (first + g) / across, 0};
        if (together > 1) {
          exchanged(groups[g].memory, __start_shared_memory, __stop_shared_memory);
          exchanged(groups[g].launched, __start_launched_memory, __stop_launched_memory);
        }
        for (bool moved = true; moved;) {  // until all of the group wait for others
          moved = false;
          for (u32 i = g * size; i < (g + 1) * size; i++) {
            if (threads[i].done || (threads[i].turn && *threads[i].turn == threads[i].seen)) continue;
            current = i;
            threadIdx = {i - g * size, 0, 0};
            swapcontext(&scheduler, &threads[i].context);
            moved = true;
          }
        }
        if (together > 1) {
          exchanged(groups[g].memory, __start_shared_memory, __stop_shared_memory);
          exchanged(groups[g].launched, __start_launched_memory, __stop_launched_memory);
        }
      }
    }
  }
}

template <class Params, class... Types, size_t... I>
static void run_entry(void (*entry)(Params, Types...), const void* params, void* const* places, u32 across, u32 down,
                      u32 size, u32 together, std::index_sequence<I...>) {
  Params given;
  std::memcpy((void*)&given, params, sizeof given);
  run_groups(across, down, size, together, [=] { entry(given, (Types)places[I]...); });
}
template <class Params, class... Types>
static void run_entry(void (*entry)(Params, Types...), const void* params, void* const* places, u32 across, u32 down,
                      u32 size, u32 together) {
  run_entry(entry, params, places, across, down, size, together, std::index_sequence_for<Types...>());
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
#define WEFT_RUN(together)                                                                                                     \
  extern "C" int run(u32 across, u32 down, u32 size, const void* params, void* const* places) {                     \
    if (__stop_shared_memory - __start_shared_memory > 48 << 10) return -1;                                         \
    return guarded([=] { run_entry(&entry, params, places, across, down, size, together); });                                 \
  }
