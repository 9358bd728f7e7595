// matmul_ints at level wasm128, in place of kernels/matmul_ints_scalar.h: four registers a vector. Bytes are widened to 16 bits, and one instruction multiplies eight
// of them and adds pairs up in 32 bits.
#pragma once

namespace weft::ISA {

struct i32x16 {
  v128_t v[4];
};
struct u8x64 {
  v128_t v[4];
};
struct pairs {
  v128_t v[4];
};

WEFT_INLINE i32x16 splat_i(const int32_t* p) {
  return quarters<i32x16>([=](int) { return wasm_i32x4_splat(*p); });
}
WEFT_INLINE i32x16 zero_i() {
  return quarters<i32x16>([](int) { return wasm_i32x4_const_splat(0); });
}
WEFT_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return wasm_i32x4_add(a.v[i], b.v[i]); });
}
WEFT_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return wasm_i32x4_mul(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 to_float(i32x16 a) {
  return quarters<f32x16>([&](int i) { return wasm_f32x4_convert_i32x4(a.v[i]); });
}

WEFT_INLINE u8x64 load_bytes(const std::byte* p) {
  return quarters<u8x64>([=](int i) { return wasm_v128_load(p + 16 * i); });
}
WEFT_INLINE u8x64 operator|(u8x64 a, u8x64 b) {
  return quarters<u8x64>([&](int i) { return wasm_v128_or(a.v[i], b.v[i]); });
}
template <int at, int count, int to>
WEFT_INLINE u8x64 bits(u8x64 a) {
  return quarters<u8x64>([&](int i) {
    v128_t moved = a.v[i];
    if constexpr (at > to) moved = wasm_u8x16_shr(moved, at - to);
    if constexpr (at < to) moved = wasm_i8x16_shl(moved, to - at);
    return wasm_v128_and(moved, wasm_u8x16_const_splat(static_cast<uint8_t>(((1 << count) - 1) << to)));
  });
}
WEFT_INLINE u8x64 look_up(const uint8_t* levels, u8x64 index) {
  const v128_t table = wasm_v128_load(levels);
  return quarters<u8x64>([&](int i) { return wasm_i8x16_swizzle(table, index.v[i]); });
}
template <int i>
WEFT_INLINE i32x16 byte_of(u8x64 a) {
  return quarters<i32x16>([&](int q) { return wasm_v128_and(wasm_u32x4_shr(a.v[q], 8 * i), wasm_i32x4_const_splat(255)); });
}

template <bool is_signed>
WEFT_INLINE pairs load_pairs(const std::byte* p) {
  return quarters<pairs>([=](int i) { return is_signed ? wasm_i16x8_load8x8(p + 8 * i) : wasm_u16x8_load8x8(p + 8 * i); });
}
WEFT_INLINE pairs low_nibbles(pairs a) {
  return quarters<pairs>([&](int i) { return wasm_v128_and(a.v[i], wasm_i16x8_const_splat(15)); });
}
WEFT_INLINE pairs high_nibbles(pairs a) {
  return quarters<pairs>([&](int i) { return wasm_i16x8_shr(a.v[i], 4); });
}
WEFT_INLINE i32x16 even(pairs a) {
  return quarters<i32x16>([&](int i) { return wasm_i32x4_shr(wasm_i32x4_shl(a.v[i], 16), 16); });
}
WEFT_INLINE i32x16 odd(pairs a) {
  return quarters<i32x16>([&](int i) { return wasm_i32x4_shr(a.v[i], 16); });
}
WEFT_INLINE i32x16 dot_pairs(i32x16 acc, pairs a, const int16_t* two) {
  const v128_t b = wasm_i32x4_splat(four_bytes(two));
  return quarters<i32x16>([&](int i) { return wasm_i32x4_add(acc.v[i], wasm_i32x4_dot_i16x8(a.v[i], b)); });
}

// The sum of (code - offset) * x over `groups` vectors of codes; `start` is -offset times the sum of x. Sums of pairs of bytes
// stay apart until the end: low has the first two lanes of a register, high the last two.
template <int limit, int groups>
WEFT_INLINE i32x16 dot(i32x16 start, const u8x64* codes, const int8_t* x) {
  i32x16 low = zero_i(), high = zero_i();
#pragma GCC unroll 8
  for (int g = 0; g < groups; ++g) {
    const v128_t four = wasm_i16x8_extend_low_i8x16(wasm_i32x4_splat(four_bytes(x + 4 * g)));
    for (int q = 0; q < 4; ++q) {
      low.v[q] = wasm_i32x4_add(low.v[q], wasm_i32x4_dot_i16x8(wasm_u16x8_extend_low_u8x16(codes[g].v[q]), four));
      high.v[q] = wasm_i32x4_add(high.v[q], wasm_i32x4_dot_i16x8(wasm_u16x8_extend_high_u8x16(codes[g].v[q]), four));
    }
  }
  return quarters<i32x16>([&](int q) {
    const v128_t even = wasm_i32x4_shuffle(low.v[q], high.v[q], 0, 2, 4, 6), odd = wasm_i32x4_shuffle(low.v[q], high.v[q], 1, 3, 5, 7);
    return wasm_i32x4_add(start.v[q], wasm_i32x4_add(even, odd));
  });
}

WEFT_INLINE int store_i8(int8_t* p, f32x16 a) {
  const i32x16 whole = quarters<i32x16>([&](int i) { return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(a.v[i])); });
  const v128_t first = wasm_i16x8_narrow_i32x4(whole.v[0], whole.v[1]), last = wasm_i16x8_narrow_i32x4(whole.v[2], whole.v[3]);
  wasm_v128_store(p, wasm_i8x16_narrow_i16x8(first, last));
  const v128_t sums = wasm_i32x4_add(wasm_i32x4_add(whole.v[0], whole.v[1]), wasm_i32x4_add(whole.v[2], whole.v[3]));
  const v128_t half = wasm_i32x4_add(sums, wasm_i64x2_shuffle(sums, sums, 1, 0));
  return wasm_i32x4_extract_lane(half, 0) + wasm_i32x4_extract_lane(half, 1);
}

}  // namespace weft::ISA
