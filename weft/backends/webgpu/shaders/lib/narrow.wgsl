// narrow: floats rounded to 16 bits, to nearest even, by integers: a driver's own functions may round otherwise.

fn half_bits(value: f32) -> u32 {
  let word = bitcast<u32>(value);
  let sign = (word >> 16u) & 0x8000u;
  let size = word & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size < 0x38800000u) { return sign | u32(round(bitcast<f32>(size) * 16777216.0)); }  // a subnormal: so many 2^-24
  let rounded = size + 0xfffu + ((size >> 13u) & 1u);
  return sign | min((rounded - 0x38000000u) >> 13u, 0x7c00u);
}

fn bfloat_bits(value: f32) -> u32 {
  let word = bitcast<u32>(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) { return (word >> 16u) | 0x40u; }
  return (word + 0x7fffu + ((word >> 16u) & 1u)) >> 16u;
}
