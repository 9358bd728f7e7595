// split: a power of two for numbers, and these as sums of halves (bfloats with BFLOAT).

// The larger magnitude; numbers that are not finite count as the largest there is.
FN f32 larger(f32 before, u32 word) {
  f32 size = bitcast<f32>(word & 0x7fffffffu);
  return before >= size ? before : size;
}

FN f32 largest_of_warp(f32 part) {
  for (u32 mask = 16u; mask > 0u; mask /= 2u) part = larger(part, bitcast<u32>(from_lane(part, mask)));
  return part;
}

// 2^13 over the power of two of the largest number; 1 where that is not finite.
FN u32 exponent_of(f32 largest) {
  u32 exponent = bitcast<u32>(largest) >> 23u;
  return exponent >= 255u ? 140u : exponent < 14u ? 14u : exponent;
}
FN f32 scale_for(f32 largest) { return bitcast<f32>((267u - exponent_of(largest)) << 23u); }
FN f32 inverse_of(f32 largest) { return bitcast<f32>((exponent_of(largest) - 13u) << 23u); }

FN void split_pair(f32 first, f32 second, u32 (&parts)[PARTS]) {
#if BFLOAT
  for (u32 i = 0; i < PARTS; i++) {
    parts[i] = bfloats(first, second);
    first -= bitcast<f32>(parts[i] << 16u);
    second -= bitcast<f32>(parts[i] & 0xffff0000u);
  }
#else
  parts[0] = halves(first, second);
#if SINGLE
#else
  vec2<f32> near = w_unpack2x16float(parts[0]);
  parts[1] = halves(first - near.x, second - near.y);
#endif
#endif
}
