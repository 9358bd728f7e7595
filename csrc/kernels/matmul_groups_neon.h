// matmul_groups_neon: one row of matmul_q with sdot. A group of codes is multiplied as soon as it is unpacked: all of a
// chunk unpacked would take every register.
#pragma once
#include "kernels/matmul_codes.h"

namespace weft::ISA {

// Groups [first, end) of a chunk times one row, whose 32 columns lie at x.
template <DType type, int first, int end>
WEFT_INLINE void add_groups(i32x16 (&sum)[1], const std::byte* chunk, const int8_t* x) {
  if constexpr (first < end) {
    constexpr bool levels = has_levels<type>();
    const int8x16_t sixteen[1] = {vld1q_s8(x + first / 4 * 16)};
    add_group<levels ? kSignedBytes : largest_code<type>(), first % 4>(sum, unpack_group<type, first, levels>(chunk), sixteen);
    add_groups<type, first + 1, end>(sum, chunk, x);
  }
}

// The two bytes of each row at p, [16][2], as integers: those of even and of odd sub-blocks.
template <bool is_signed>
WEFT_INLINE void split_bytes(const std::byte* p, i32x16 (&scale)[2]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const uint8x16_t both = load16(p + 16 * i);
    if constexpr (is_signed) {
      const int16x8_t even = vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_u8(both), 8), 8);
      const int16x8_t odd = vshrq_n_s16(vreinterpretq_s16_u8(both), 8);
      scale[0].v[2 * i] = vmovl_s16(vget_low_s16(even)), scale[0].v[2 * i + 1] = vmovl_high_s16(even);
      scale[1].v[2 * i] = vmovl_s16(vget_low_s16(odd)), scale[1].v[2 * i + 1] = vmovl_high_s16(odd);
    } else {
      const uint16x8_t pairs = vreinterpretq_u16_u8(both);
      const uint32x4_t wide[2] = {vmovl_u16(vget_low_u16(pairs)), vmovl_high_u16(pairs)};
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        scale[0].v[2 * i + h] = vreinterpretq_s32_u32(vandq_u32(wide[h], vdupq_n_u32(255)));
        scale[1].v[2 * i + h] = vreinterpretq_s32_u32(vshrq_n_u32(wide[h], 8));
      }
    }
  }
}

// The integer scales of sub-blocks 2j and 2j + 1.
template <DType type>
WEFT_INLINE void two_scales(const std::byte* header, int j, i32x16 (&scale)[2]) {
  constexpr Format f = format_of(type);
  split_bytes<f.signed_subs>(header + (f.mins ? 64 : 32) + 32 * j, scale);
  if constexpr (f.nibbles)
    for (i32x16& one : scale) one = quarters<i32x16>([&](int i) { return vandq_s32(one.v[i], vdupq_n_s32(15)); });
}

}  // namespace weft::ISA
