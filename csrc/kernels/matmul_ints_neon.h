// matmul_ints at the NEON levels: four registers a vector. Codes are signed bytes here: those of 8 bits have 128 taken
// off, which is their offset, so that `start` is not needed.
//
//   neon        smlal multiplies bytes and adds them up in 16 bits
//   neon_dot    sdot multiplies and adds four bytes a lane
//   neon_i8mm   smmla multiplies 2 rows of W by 2 rows of x, eight bytes of each
#pragma once

namespace weft::ISA {

struct i32x16 {
  int32x4_t v[4];
};
struct u8x64 {
  uint8x16_t v[4];
};
struct pairs {
  int16x8_t v[4];
};

WEFT_INLINE i32x16 splat_i(const int32_t* p) {
  return quarters<i32x16>([=](int) { return vdupq_n_s32(*p); });
}
WEFT_INLINE i32x16 zero_i() {
  return quarters<i32x16>([](int) { return vdupq_n_s32(0); });
}
WEFT_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
WEFT_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
  return quarters<i32x16>([&](int i) { return vmulq_s32(a.v[i], b.v[i]); });
}
WEFT_INLINE f32x16 to_float(i32x16 a) {
  return quarters<f32x16>([&](int i) { return vcvtq_f32_s32(a.v[i]); });
}

WEFT_INLINE uint8x16_t load16(const std::byte* p) { return vld1q_u8(reinterpret_cast<const uint8_t*>(p)); }
WEFT_INLINE u8x64 load_bytes(const std::byte* p) {
  return quarters<u8x64>([=](int i) { return load16(p + 16 * i); });
}
WEFT_INLINE u8x64 operator|(u8x64 a, u8x64 b) {
  return quarters<u8x64>([&](int i) { return vorrq_u8(a.v[i], b.v[i]); });
}
// Bits [at, at + count) of each byte, moved to bit `to`.
template <int at, int count, int to>
WEFT_INLINE uint8x16_t bits16(uint8x16_t a) {
  constexpr auto mask = static_cast<uint8_t>(((1 << count) - 1) << to);
  if constexpr (count == 8) return a;
  if constexpr (at > to) a = vshrq_n_u8(a, at - to);
  if constexpr (at < to) a = vshlq_n_u8(a, to - at);
  if constexpr (to == 0 && at + count == 8) return a;
  return vandq_u8(a, vdupq_n_u8(mask));
}
template <int at, int count, int to>
WEFT_INLINE u8x64 bits(u8x64 a) {
  return quarters<u8x64>([&](int i) { return bits16<at, count, to>(a.v[i]); });
}
// `code` with bits [at, at + count) of `plane` from `to` on: a shift, and one instruction that takes the bits of a mask.
template <int at, int count, int to>
WEFT_INLINE u8x64 with_bits(u8x64 code, u8x64 plane) {
  constexpr auto mask = static_cast<uint8_t>(((1 << count) - 1) << to);
  return quarters<u8x64>([&](int i) {
    uint8x16_t moved = plane.v[i];
    if constexpr (at > to) moved = vshrq_n_u8(moved, at - to);
    if constexpr (at < to) moved = vshlq_n_u8(moved, to - at);
    return vbslq_u8(vdupq_n_u8(mask), moved, code.v[i]);
  });
}
// Groups 6 and 7 of 3-bit codes: the top and the lowest bits of three vectors, by shifts that insert.
WEFT_INLINE u8x64 top_bits(u8x64 a, u8x64 b, u8x64 c) {
  return quarters<u8x64>([&](int i) { return vshrq_n_u8(vsriq_n_u8(vsriq_n_u8(a.v[i], b.v[i], 1), c.v[i], 2), 5); });
}
WEFT_INLINE u8x64 lowest_bits(u8x64 a, u8x64 b, u8x64 c) {
  return quarters<u8x64>(
      [&](int i) { return vandq_u8(vsliq_n_u8(vsliq_n_u8(a.v[i], b.v[i], 1), c.v[i], 2), vdupq_n_u8(7)); });
}
WEFT_INLINE u8x64 look_up(const uint8_t* levels, u8x64 index) {
  const uint8x16_t table = vld1q_u8(levels);
  return quarters<u8x64>([&](int i) { return vqtbl1q_u8(table, index.v[i]); });
}
template <int i>
WEFT_INLINE i32x16 byte_of(u8x64 a) {
  return quarters<i32x16>([&](int q) {
    uint32x4_t lane = vreinterpretq_u32_u8(a.v[q]);
    if constexpr (i > 0) lane = vshrq_n_u32(lane, 8 * i);
    return vreinterpretq_s32_u32(vandq_u32(lane, vdupq_n_u32(255)));
  });
}

template <bool is_signed>
WEFT_INLINE int16x8_t widen8(const std::byte* p) {
  const uint8x8_t bytes = vld1_u8(reinterpret_cast<const uint8_t*>(p));
  return is_signed ? vmovl_s8(vreinterpret_s8_u8(bytes)) : vreinterpretq_s16_u16(vmovl_u8(bytes));
}
template <bool is_signed>
WEFT_INLINE pairs load_pairs(const std::byte* p) {
  return quarters<pairs>([=](int i) { return widen8<is_signed>(p + 8 * i); });
}
WEFT_INLINE pairs low_nibbles(pairs a) {
  return quarters<pairs>([&](int i) { return vandq_s16(a.v[i], vdupq_n_s16(15)); });
}
WEFT_INLINE pairs high_nibbles(pairs a) {
  return quarters<pairs>([&](int i) { return vshrq_n_s16(a.v[i], 4); });
}
WEFT_INLINE i32x16 even(pairs a) {
  return quarters<i32x16>([&](int i) { return vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_s16(a.v[i]), 16), 16); });
}
WEFT_INLINE i32x16 odd(pairs a) {
  return quarters<i32x16>([&](int i) { return vshrq_n_s32(vreinterpretq_s32_s16(a.v[i]), 16); });
}
WEFT_INLINE i32x16 dot_pairs(i32x16 acc, pairs a, const int16_t* two) {
  const int16x8_t b = vreinterpretq_s16_s32(vdupq_n_s32(four_bytes(two)));
  return quarters<i32x16>([&](int i) {
    const int32x4_t low = vmull_s16(vget_low_s16(a.v[i]), vget_low_s16(b)), high = vmull_high_s16(a.v[i], b);
    return vaddq_s32(acc.v[i], vpaddq_s32(low, high));
  });
}

constexpr int kSignedBytes = 256;  // a limit: codes are signed already
template <int limit>
WEFT_INLINE int8x16_t signed_codes(uint8x16_t codes) {
  return vreinterpretq_s8_u8(limit == 255 ? veorq_u8(codes, vdupq_n_u8(128)) : codes);
}
WEFT_INLINE int8x16_t splat_four(const int8_t* x) { return vreinterpretq_s8_s32(vdupq_n_s32(four_bytes(x))); }

// step(g) for every group. With several rows the loop stays a loop and the codes stay in memory: unrolled, it has more
// values alive than there are registers, and most of its instructions move them around.
template <int groups, int rows, class F>
WEFT_INLINE void for_groups(F step) {
  if constexpr (rows == 1) {
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g) step(g);
  } else {
#pragma GCC unroll 1
    for (int g = 0; g < groups; ++g) step(g);
  }
}

#if defined(WEFT_ISA_neon_dot) || defined(WEFT_ISA_neon_i8mm)

constexpr int kPass = 4;  // rows whose sums fill 16 registers

// Four columns, those of word `lane` of x.
template <int limit, int lane, int rows>
WEFT_INLINE void add_group(i32x16 (&sum)[rows], const u8x64& codes, const int8x16_t (&x)[rows]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int8x16_t code = signed_codes<limit>(codes.v[i]);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sum[r].v[i] = vdotq_laneq_s32(sum[r].v[i], code, x[r], lane);
  }
}

template <int limit, int groups, int rows>
WEFT_INLINE void add_dots(i32x16 (&sum)[rows], const u8x64* codes, const int8_t* x, int64_t stride) {
  static_assert(groups % 4 == 0);
  for_groups<groups / 4, rows>([&](int g) {
    int8x16_t sixteen[rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sixteen[r] = vld1q_s8(x + r * stride + g * 16);
    add_group<limit, 0>(sum, codes[4 * g], sixteen);
    add_group<limit, 1>(sum, codes[4 * g + 1], sixteen);
    add_group<limit, 2>(sum, codes[4 * g + 2], sixteen);
    add_group<limit, 3>(sum, codes[4 * g + 3], sixteen);
  });
}

#else

constexpr int kPass = 2;

// The products of each lane's four bytes, added up over as many groups as 16 bits have room for.
template <int limit, int groups, int rows>
WEFT_INLINE void add_dots(i32x16 (&sum)[rows], const u8x64* codes, const int8_t* x, int64_t stride) {
  constexpr int fit = 32767 / (127 * (limit == 255 ? 128 : limit)), step = fit < groups ? fit : groups;
  static_assert(groups % step == 0);
  for (int first = 0; first < groups; first += step) {
    int16x8_t low[rows][4] = {}, high[rows][4] = {};  // of the first and the last two lanes
    for_groups<step, rows>([&](int g) {
      const u8x64 group = codes[first + g];
#pragma GCC unroll 2
      for (int r = 0; r < rows; ++r) {
        const int8x16_t four = splat_four(x + r * stride + (first + g) * 4);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const int8x16_t code = signed_codes<limit>(group.v[i]);
          low[r][i] = vmlal_s8(low[r][i], vget_low_s8(code), vget_low_s8(four));
          high[r][i] = vmlal_high_s8(high[r][i], code, four);
        }
      }
    });
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int32x4_t sums = vpaddq_s32(vpaddlq_s16(low[r][i]), vpaddlq_s16(high[r][i]));
        sum[r].v[i] = vaddq_s32(sum[r].v[i], sums);
      }
  }
}

#endif

#if defined(WEFT_ISA_neon_i8mm)

// Joined word by word, two groups of four columns are pairs of rows of W, eight columns each.
template <int limit, int groups>
WEFT_INLINE void join_groups(const u8x64* codes, int8x16_t (*joined)[8]) {
#pragma GCC unroll 1
  for (int g = 0; g < groups; g += 2)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t a = vreinterpretq_u32_u8(codes[g].v[i]), b = vreinterpretq_u32_u8(codes[g + 1].v[i]);
      joined[g / 2][2 * i] = signed_codes<limit>(vreinterpretq_u8_u32(vzip1q_u32(a, b)));
      joined[g / 2][2 * i + 1] = signed_codes<limit>(vreinterpretq_u8_u32(vzip2q_u32(a, b)));
    }
}

// The rows of x go in pairs, and their sums are joined like the codes.
template <int groups, int rows>
WEFT_INLINE void add_products(i32x16* total, const int8x16_t (*joined)[8], const int8_t* x, int64_t stride) {
  int32x4_t sum[rows / 2][8];
#pragma GCC unroll 2
  for (int r = 0; r < rows / 2; ++r)
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int32x4_t a = total[2 * r].v[i / 2], b = total[2 * r + 1].v[i / 2];
      sum[r][i] = i % 2 ? vzip2q_s32(a, b) : vzip1q_s32(a, b);
    }
#pragma GCC unroll 1
  for (int g = 0; g < groups / 2; ++g)
#pragma GCC unroll 2
    for (int r = 0; r < rows / 2; ++r) {
      const int8_t* at = x + 2 * r * stride + g * 8;
      const int8x16_t two = vcombine_s8(vld1_s8(at), vld1_s8(at + stride));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) sum[r][i] = vmmlaq_s32(sum[r][i], joined[g][i], two);
    }
#pragma GCC unroll 2
  for (int r = 0; r < rows / 2; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      total[2 * r].v[i] = vuzp1q_s32(sum[r][2 * i], sum[r][2 * i + 1]);
      total[2 * r + 1].v[i] = vuzp2q_s32(sum[r][2 * i], sum[r][2 * i + 1]);
    }
}

#endif

// Sums of 32 products are below 2^22, so they may begin at the bits of 1.5 * 2^23: as a float the sum is then that many
// above it. One subtraction, where a conversion takes four times as long.
constexpr int32_t kFloatBits = 0x4B400000;
WEFT_INLINE float32x4_t from_bits(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(12582912.0f));
}

constexpr int kTogether = 8;  // rows that share the unpacked, or joined, codes

// The sums of (code - offset) * x over `groups` vectors of codes up to `limit`; row r of x lies at x + r * stride.
// total holds -offset times the sum of x on entry.
template <int limit, int groups, int rows>
WEFT_INLINE void dot_rows(i32x16* total, const u8x64* codes, const int8_t* x, int64_t stride) {
  constexpr int pass = rows < kPass ? rows : kPass, rest = rows % pass;
  if constexpr (limit == 255)
    for (int r = 0; r < rows; ++r) total[r] = zero_i();
#if defined(WEFT_ISA_neon_i8mm)
  if constexpr (rows % 2 == 0) {
    static_assert(rest == 0);
    int8x16_t joined[groups / 2][8];
    join_groups<limit, groups>(codes, joined);
    for (int r = 0; r < rows; r += pass)
      add_products<groups, pass>(total + r, joined, x + r * stride, stride);
    return;
  }
#endif
  const auto add_some = [&]<int count>(i32x16 (&sum)[count], int r) {
    for (int i = 0; i < count; ++i) sum[i] = total[r + i];
    add_dots<limit, groups>(sum, codes, x + r * stride, stride);
    for (int i = 0; i < count; ++i) total[r + i] = sum[i];
  };
  i32x16 sum[pass];
  for (int r = 0; r + pass <= rows; r += pass) add_some(sum, r);
  if constexpr (rest > 0) {
    i32x16 last[rest];
    add_some(last, rows - rest);
  }
}

WEFT_INLINE int16x8_t narrow8(float32x4_t a, float32x4_t b) {
  return vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a)), vqmovn_s32(vcvtnq_s32_f32(b)));
}
WEFT_INLINE int store_i8(int8_t* p, f32x16 a) {
  const int8x16_t bytes = vcombine_s8(vqmovn_s16(narrow8(a.v[0], a.v[1])), vqmovn_s16(narrow8(a.v[2], a.v[3])));
  vst1q_s8(p, bytes);
  return vaddlvq_s8(bytes);
}

}  // namespace weft::ISA
