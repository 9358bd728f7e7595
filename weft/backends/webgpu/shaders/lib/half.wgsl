// half: float16 by integers, since not every device has the built-in functions, nor all of these the same roundings.

// The lower 16 bits as a float16, widened; exact.
fn widened(word: u32) -> f32 {
  let sign = (word & 0x8000u) << 16u;
  let size = word & 0x7fffu;
  let normal = bitcast<f32>((size << 13u) + 0x38000000u);  // the exponent's bias goes from 15 to 127
  let small = f32(size) * 5.9604644775390625e-8;  // a subnormal number: so many 2^-24
  var wide = select(normal, small, size < 0x400u);
  if (size >= 0x7c00u) { wide = bitcast<f32>((size << 13u) + 0x70000000u); }
  return bitcast<f32>(bitcast<u32>(wide) | sign);
}

fn widened2(word: u32) -> vec2<f32> { return vec2<f32>(widened(word & 0xffffu), widened(word >> 16u)); }
