// half: float16 widened, exactly. By integers, since not every device has the built-in function; with HALF the device
// was found to widen all of them rightly (device.py).
#if HALF == native
fn widened2(word: u32) -> vec2<f32> { return unpack2x16float(word); }
fn widened(word: u32) -> f32 { return unpack2x16float(word & 0xffffu).x; }
#else
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
#endif
