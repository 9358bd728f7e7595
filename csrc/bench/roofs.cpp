#include "bench/roofs.h"

#ifdef WEFT_X86
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "core/error.h"
#include "core/memory.h"

namespace weft {
namespace {

// Does a little work, some 20 to 100 µs of it, and returns how much: the clock is read between two bursts.
using Burst = double (*)(const std::byte* data, size_t bytes);

constexpr size_t kBurstBytes = size_t{512} << 10;  // read between two readings of the clock
constexpr size_t kLine = 1024;                     // bytes of one turn of the reading loop

// The compiler may not know what a register holds: else it would compute one of many equal sums, or none.
#define WEFT_OPAQUE(value) asm volatile("" : "+v"(value))

#ifdef WEFT_X86
constexpr int kRounds = 2000;  // of an arithmetic loop, per burst

#define WEFT_TARGET(isa) __attribute__((target(isa)))
#define WEFT_AVX2 WEFT_TARGET("avx2,fma")
#define WEFT_AVX512 WEFT_TARGET("avx512f,avx512bw,avx512vl,avx512vnni")
#define WEFT_AMX WEFT_TARGET("amx-tile,amx-int8,amx-bf16")

WEFT_AVX2 double read_avx2(const std::byte* data, size_t bytes) {
  __m256i seen[8] = {};
  for (size_t at = 0; at < bytes; at += kLine) {
    const auto* line = reinterpret_cast<const __m256i*>(data + at);
    _Pragma("GCC unroll 32") for (int i = 0; i < 32; ++i)
      seen[i % 8] = _mm256_or_si256(seen[i % 8], _mm256_load_si256(line + i));
  }
  for (__m256i& value : seen) WEFT_OPAQUE(value);
  return static_cast<double>(bytes);
}

WEFT_AVX512 double read_avx512(const std::byte* data, size_t bytes) {
  __m512i seen[8] = {};
  for (size_t at = 0; at < bytes; at += kLine) {
    const auto* line = reinterpret_cast<const __m512i*>(data + at);
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i)
      seen[i % 8] = _mm512_or_si512(seen[i % 8], _mm512_load_si512(line + i));
  }
  for (__m512i& value : seen) WEFT_OPAQUE(value);
  return static_cast<double>(bytes);
}

// Independent sums: more than the latency of an instruction times the number of units that run it. Unrolled by order,
// so that they stay in registers.
constexpr int kSums = 12;
#define WEFT_EACH(i) _Pragma("GCC unroll 12") for (int i = 0; i < kSums; ++i)

WEFT_AVX2 double f32_avx2(const std::byte*, size_t) {
  __m256 sum[kSums], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  WEFT_OPAQUE(a);
  WEFT_OPAQUE(b);
  WEFT_EACH(i) sum[i] = a;
  for (int round = 0; round < 2 * kRounds; ++round) {
    WEFT_EACH(i) {
      sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
      WEFT_OPAQUE(sum[i]);
    }
  }
  return 2.0 * kRounds * kSums * 8 * 2;
}

WEFT_AVX512 double f32_avx512(const std::byte*, size_t) {
  __m512 sum[kSums], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  WEFT_OPAQUE(a);
  WEFT_OPAQUE(b);
  WEFT_EACH(i) sum[i] = a;
  for (int round = 0; round < 2 * kRounds; ++round) {
    WEFT_EACH(i) {
      sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
      WEFT_OPAQUE(sum[i]);
    }
  }
  return 2.0 * kRounds * kSums * 16 * 2;
}

WEFT_AVX512 double int8_avx512(const std::byte*, size_t) {
  __m512i sum[kSums], a = _mm512_set1_epi8(0x3C), b = _mm512_set1_epi8(0x3C);
  WEFT_OPAQUE(a);
  WEFT_OPAQUE(b);
  WEFT_EACH(i) sum[i] = a;
  for (int round = 0; round < 2 * kRounds; ++round) {
    WEFT_EACH(i) {
      sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
      WEFT_OPAQUE(sum[i]);
    }
  }
  return 2.0 * kRounds * kSums * 64 * 2;
}

// Eight full tiles. A constant: gcc 12 takes the stores to a local one for dead.
struct alignas(64) Tiles {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
constexpr Tiles kTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// An ordinary number as a byte and as bfloat16: zeros would cost less power, and the clock would be higher than a model's.
struct alignas(64) Operand {
  uint8_t bytes[1024];
  constexpr Operand() : bytes() { std::fill(bytes, bytes + sizeof bytes, uint8_t{0x3C}); }
};
constexpr Operand kOperand;

WEFT_AMX inline void start_tiles() {
  _tile_loadconfig(&kTiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, kOperand.bytes, 64);
  _tile_loadd(5, kOperand.bytes, 64);
  _tile_loadd(6, kOperand.bytes, 64);
  _tile_loadd(7, kOperand.bytes, 64);
}

// Four sums, two tiles of x, two of W, all in registers.
WEFT_AMX double amx_int8(const std::byte*, size_t) {
  start_tiles();
  for (int round = 0; round < kRounds; ++round) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return 1.0 * kRounds * 4 * 16 * 16 * 64 * 2;
}

WEFT_AMX double amx_bf16(const std::byte*, size_t) {
  start_tiles();
  for (int round = 0; round < kRounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 1.0 * kRounds * 4 * 16 * 16 * 32 * 2;
}
#endif

#ifdef WEFT_ARM
constexpr int kRounds = 4000;
constexpr int kSums = 12;

// Written out: the compiler would keep a copy in memory of every sum that it may not know.
#define WEFT_TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define WEFT_SUMS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11"

double f32_neon(const std::byte*, size_t) {
#define WEFT_ADD(i) "fmla v" #i ".4s, v16.4s, v17.4s\n"
  for (int round = 0; round < kRounds; ++round) asm volatile(WEFT_TWELVE(WEFT_ADD)::: WEFT_SUMS);
#undef WEFT_ADD
  return 1.0 * kRounds * kSums * 4 * 2;
}

__attribute__((target("arch=armv8.2-a+dotprod"))) double int8_neon(const std::byte*, size_t) {
#define WEFT_ADD(i) "sdot v" #i ".4s, v16.16b, v17.16b\n"
  for (int round = 0; round < kRounds; ++round) asm volatile(WEFT_TWELVE(WEFT_ADD)::: WEFT_SUMS);
#undef WEFT_ADD
  return 1.0 * kRounds * kSums * 16 * 2;
}

__attribute__((target("arch=armv8.2-a+fp16"))) double f16_neon(const std::byte*, size_t) {
#define WEFT_ADD(i) "fmla v" #i ".8h, v16.8h, v17.8h\n"
  for (int round = 0; round < kRounds; ++round) asm volatile(WEFT_TWELVE(WEFT_ADD)::: WEFT_SUMS);
#undef WEFT_ADD
  return 1.0 * kRounds * kSums * 8 * 2;
}

double read_neon(const std::byte* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 128) {
    const std::byte* line = data + at;
    asm volatile(
        "ldp q0, q1, [%0]\n ldp q2, q3, [%0, #32]\n ldp q4, q5, [%0, #64]\n ldp q6, q7, [%0, #96]\n" ::"r"(line)
        : WEFT_SUMS, "memory");
  }
  return static_cast<double>(bytes);
}
#endif

// The fallback of every machine: 16 bytes at a time.
double read_plain(const std::byte* data, size_t bytes) {
  typedef uint64_t Words __attribute__((vector_size(16)));
  Words seen[8] = {};
  for (size_t at = 0; at < bytes; at += kLine) {
    const auto* line = reinterpret_cast<const Words*>(data + at);
    for (int i = 0; i < 64; ++i) seen[i % 8] |= line[i];
  }
  for (Words& value : seen) asm volatile("" ::"m"(value));
  return static_cast<double>(bytes);
}

struct Unit {
  const char* name;
  const char* level;  // the lowest that has it
  Burst burst;
};

constexpr Unit kUnits[] = {  // the last entry of a name that a level has counts
    {"read", "scalar", read_plain},
#ifdef WEFT_X86
    {"read", "avx2", read_avx2},        {"read", "avx512", read_avx512}, {"f32", "avx2", f32_avx2},
    {"f32", "avx512", f32_avx512},      {"int8", "avx512", int8_avx512}, {"amx_int8", "amx", amx_int8},
    {"amx_bf16", "amx", amx_bf16},
#elif defined(WEFT_ARM)
    {"read", "neon", read_neon},        {"f32", "neon", f32_neon},       {"int8", "neon_dot", int8_neon},
    {"f16", "neon_dot", f16_neon},
#endif
};

// Whether `level` is `lowest` or above it: a level runs what those below it run.
bool reaches(const Level& level, std::string_view lowest) {
  for (const Level* at = &level;; --at) {
    if (lowest == at->name) return true;
    if (at == &levels().front()) return false;
  }
}

Burst find_burst(std::string_view name, const Level& level) {
  Burst found = nullptr;
  for (const Unit& unit : kUnits)
    if (name == unit.name && reaches(level, unit.level)) found = unit.burst;
  if (found) return found;
  std::string known;
  for (const std::string& other : roof_names(level)) known += (known.empty() ? "" : ", ") + other;
  fail(ErrorKind::not_found, "roofs", "the level " + std::string(level.name) + " has no unit '" + std::string(name) +
                                 "': there are " + known);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct alignas(64) Share {
  double amount = 0, start = 0, end = 0;
  size_t at = 0;  // where reading goes on in the next repeat: a short one sees only a part of a large buffer
};

struct Race {
  Burst burst;
  std::byte* data;
  size_t part;  // bytes of each worker
  double seconds;
  int workers;
  std::atomic<int> ready{0};
  std::vector<Share> shares;

  static void fill(void* context, int index) {
    const Race& race = *static_cast<Race*>(context);
    if (race.part) std::memset(race.data + race.part * static_cast<size_t>(index), 1, race.part);
  }

  static void run(void* context, int index) {
    Race& race = *static_cast<Race*>(context);
    race.ready.fetch_add(1);
    while (race.ready.load() < race.workers) pause_cpu();
    Share& share = race.shares[static_cast<size_t>(index)];
    const std::byte* data = race.data + race.part * static_cast<size_t>(index);
    size_t& at = share.at;
    share.amount = 0;
    share.start = now();
    do {
      const size_t bytes = std::min(kBurstBytes, race.part - at);
      share.amount += race.burst(data + at, bytes);
      at = at + bytes < race.part ? at + bytes : 0;
    } while ((share.end = now()) < share.start + race.seconds);
  }

  double rate() const {
    double amount = 0, start = shares[0].start, end = shares[0].end;
    for (const Share& share : shares)
      amount += share.amount, start = std::min(start, share.start), end = std::max(end, share.end);
    return amount / (end - start);
  }
};

}  // namespace

std::vector<std::string> roof_names(const Level& level) {
  std::vector<std::string> names;
  for (const Unit& unit : kUnits)
    if (reaches(level, unit.level) && std::find(names.begin(), names.end(), unit.name) == names.end())
      names.emplace_back(unit.name);
  return names;
}

std::vector<double> measure_roof(std::string_view name, const Level& level, Pool& pool, size_t bytes, double seconds,
                                 int repeats) {
  const Burst burst = find_burst(name, level);
  const auto workers = static_cast<size_t>(pool.size());
  const size_t part = name == "read" ? std::max(kLine, bytes / workers / kLine * kLine) : 0;
  Memory memory(part * workers);
  Race race{burst, memory.data(), part, seconds, pool.size(), {}, std::vector<Share>(workers)};
  pool.run(Race::fill, &race);
  std::vector<double> rates;
  for (int repeat = 0; repeat <= repeats; ++repeat) {  // the first one warms up
    race.ready = 0;
    pool.run(Race::run, &race);
    if (repeat) rates.push_back(race.rate());
  }
  return rates;
}

}  // namespace weft
