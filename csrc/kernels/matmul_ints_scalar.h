// matmul_ints at level scalar: arrays.
#pragma once

namespace weft::ISA {

struct i32x16 {
  int32_t v[16];
};
struct u8x64 {
  uint8_t v[64];
};
struct pairs {
  int16_t v[32];
};

// A vector of type V whose element i is f(i).
template <class V, class F>
WEFT_INLINE V each(F f) {
  V r;
  for (size_t i = 0; i < sizeof r.v / sizeof r.v[0]; ++i) r.v[i] = f(i);
  return r;
}

WEFT_INLINE i32x16 zero_i() { return each<i32x16>([](size_t) { return 0; }); }
WEFT_INLINE i32x16 splat_i(const int32_t* p) { return each<i32x16>([=](size_t) { return *p; }); }
WEFT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return each<i32x16>([&](size_t i) { return a.v[i] + b.v[i]; }); }
WEFT_INLINE i32x16 operator*(i32x16 a, i32x16 b) { return each<i32x16>([&](size_t i) { return a.v[i] * b.v[i]; }); }
WEFT_INLINE f32x16 to_float(i32x16 a) { return each<f32x16>([&](size_t i) { return static_cast<float>(a.v[i]); }); }

WEFT_INLINE u8x64 load_bytes(const std::byte* p) {
  return each<u8x64>([=](size_t i) { return static_cast<uint8_t>(p[i]); });
}
WEFT_INLINE u8x64 operator|(u8x64 a, u8x64 b) {
  return each<u8x64>([&](size_t i) { return static_cast<uint8_t>(a.v[i] | b.v[i]); });
}
template <int at, int count, int to>
WEFT_INLINE u8x64 bits(u8x64 a) {
  return each<u8x64>([&](size_t i) { return static_cast<uint8_t>((a.v[i] >> at & ((1 << count) - 1)) << to); });
}
WEFT_INLINE u8x64 look_up(const uint8_t* levels, u8x64 index) {
  return each<u8x64>([&](size_t i) { return levels[index.v[i]]; });
}
template <int i>
WEFT_INLINE i32x16 byte_of(u8x64 a) {
  return each<i32x16>([&](size_t lane) { return a.v[lane * 4 + i]; });
}

template <bool is_signed>
WEFT_INLINE pairs load_pairs(const std::byte* p) {
  return each<pairs>([=](size_t i) {
    const int byte = static_cast<uint8_t>(p[i]);
    return static_cast<int16_t>(is_signed && byte > 127 ? byte - 256 : byte);
  });
}
WEFT_INLINE pairs low_nibbles(pairs a) {
  return each<pairs>([&](size_t i) { return static_cast<int16_t>(a.v[i] & 15); });
}
WEFT_INLINE pairs high_nibbles(pairs a) {
  return each<pairs>([&](size_t i) { return static_cast<int16_t>(a.v[i] >> 4); });
}
WEFT_INLINE i32x16 even(pairs a) { return each<i32x16>([&](size_t i) { return a.v[2 * i]; }); }
WEFT_INLINE i32x16 odd(pairs a) { return each<i32x16>([&](size_t i) { return a.v[2 * i + 1]; }); }
WEFT_INLINE i32x16 dot_pairs(i32x16 acc, pairs a, const int16_t* two) {
  return each<i32x16>([&](size_t i) { return acc.v[i] + a.v[2 * i] * two[0] + a.v[2 * i + 1] * two[1]; });
}

// The sum of (code - offset) * x over `groups` vectors of codes; `start` is -offset times the sum of x.
template <int limit, int groups>
WEFT_INLINE i32x16 dot(i32x16 start, const u8x64* codes, const int8_t* x) {
  for (int g = 0; g < groups; ++g)
    for (int i = 0; i < 64; ++i) start.v[i / 4] += codes[g].v[i] * x[g * 4 + i % 4];
  return start;
}

WEFT_INLINE int store_i8(int8_t* p, f32x16 a) {
  const f32x16 integers = round(a);
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum += p[i] = static_cast<int8_t>(integers.v[i]);
  return sum;
}

}  // namespace weft::ISA
