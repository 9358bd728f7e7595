// weights: a matrix as the file stores it, read in fours and in parts of 32 columns, widened. Rows are padded to 32
// columns and are `stride` words apart, a multiple of 4. Blocks that are no whole words have their codes first and their
// scales at the end of the row: see CODES in weights.py.
#bind weight: array<vec4<u32>>

fn word_at(i: u32) -> u32 { return weight[i >> 2u][i & 3u]; }

fn four_bytes(word: u32) -> vec4<f32> {  // signed
  let i = bitcast<vec4<i32>>(vec4<u32>(word << 24u, word << 16u, word << 8u, word));
  return vec4<f32>(i >> vec4<u32>(24u));
}

fn four_nibbles(word: u32, high: u32) -> vec4<f32> {
  let w = word >> (4u * high);
  return vec4<f32>(vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(15u));
}

#if DTYPE == f32
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> { return bitcast<vec4<f32>>(weight[(row * stride + k) >> 2u]); }
#endif
#if DTYPE == f16
#include half
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let at = row * stride + (k >> 1u);
  let eight = weight[at >> 2u];
  let pair = select(eight.xy, eight.zw, (at & 2u) != 0u);
  return vec4<f32>(widened2(pair.x), widened2(pair.y));
}
#endif
#if DTYPE == bf16
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let at = row * stride + (k >> 1u);
  let eight = weight[at >> 2u];
  let pair = select(eight.xy, eight.zw, (at & 2u) != 0u);
  return bitcast<vec4<f32>>(vec4<u32>(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
}
#endif
#if DTYPE == q4_0|q4_1|q5_0|q5_1|iq4_nl|iq4_xs|mxfp4
// Four codes of words in which 16 columns are the low nibbles of four words, and the next 16 the high ones.
fn four_codes(first: u32, k: u32) -> vec4<f32> { return four_nibbles(word_at(first + ((k & 15u) >> 2u)), (k >> 4u) & 1u); }
#endif
#if DTYPE == q5_0|q5_1
// Bits `k` to `k` + 3 of a word, as 0 or `size`.
fn four_bits(word: u32, k: u32, size: f32) -> vec4<f32> {
  let w = word >> k;
  return vec4<f32>(vec4<u32>(w, w >> 1u, w >> 2u, w >> 3u) & vec4<u32>(1u)) * size;
}
#endif
#if DTYPE == q3_k|q5_k
// Bit `bit` of four bytes, as 0 or `size`.
fn bit_of_bytes(word: u32, bit: u32, size: f32) -> vec4<f32> {
  let w = word >> bit;
  return vec4<f32>(vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(1u)) * size;
}
#endif
#if DTYPE == q2_k|q3_k
fn two_bits_of_bytes(word: u32, bit: u32) -> vec4<f32> {
  let w = word >> bit;
  return vec4<f32>(vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(3u));
}
#endif
#if DTYPE == mxfp4|q2_k|q3_k
fn byte_at(i: u32, byte: u32) -> u32 { return (word_at(i + (byte >> 2u)) >> (8u * (byte & 3u))) & 255u; }
#endif
#if DTYPE == iq4_nl|iq4_xs
// The sixteen values of codes, four in a word.
fn valued(code: f32) -> f32 {
  let c = u32(code);
  var four = select(0xbfad9881u, 0xf6eaddcfu, (c & 4u) != 0u);
  if (c >= 8u) { four = select(0x26190d01u, 0x71594535u, (c & 4u) != 0u); }
  return f32(bitcast<i32>(four << (24u - 8u * (c & 3u))) >> 24u);
}

fn four_valued(codes: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(valued(codes.x), valued(codes.y), valued(codes.z), valued(codes.w));
}
#endif
#if DTYPE == q8_0|q4_0|q5_0|iq4_nl|q3_k|q6_k
#include half
// The scale of a block, of which the row's codes are `words` before.
fn scale_of(row: u32, stride: u32, words: u32, block: u32) -> f32 {
  let pair = word_at(row * stride + words + (block >> 1u));
  return widened(select(pair & 0xffffu, pair >> 16u, (block & 1u) == 1u));
}
#endif
#if DTYPE == q8_0
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let scale = scale_of(row, stride, (p.{{DEPTH}} + 31u) / 32u * 8u, k >> 5u);
  return four_bytes(word_at(row * stride + (k >> 2u))) * scale;
}
#endif
#if DTYPE == q4_0
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let scale = scale_of(row, stride, (p.{{DEPTH}} + 31u) / 32u * 4u, k >> 5u);
  return (four_codes(row * stride + (k >> 5u) * 4u, k) - 8.0) * scale;
}
#endif
#if DTYPE == iq4_nl
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let scale = scale_of(row, stride, (p.{{DEPTH}} + 31u) / 32u * 4u, k >> 5u);
  return four_valued(four_codes(row * stride + (k >> 5u) * 4u, k)) * scale;
}
#endif
#if DTYPE == q5_0
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let block = row * stride + (k >> 5u) * 5u;
  let scale = scale_of(row, stride, (p.{{DEPTH}} + 31u) / 32u * 5u, k >> 5u);
  return (four_codes(block + 1u, k) + four_bits(word_at(block), k & 31u, 16.0) - 16.0) * scale;
}
#endif
#if DTYPE == mxfp4
// Codes are 0, 1, 2, 3, 4, 6, 8 and 12 halves, and their negatives; the scale is a power of two.
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let codes = vec4<u32>(four_codes(row * stride + (k >> 5u) * 4u, k));
  let small = codes & vec4<u32>(7u);
  let sizes = (vec4<u32>(0xc8643210u, 0xc8643210u, 0xc8643210u, 0xc8643210u) >> (small * 4u)) & vec4<u32>(15u);
  let signs = vec4<f32>(1.0) - vec4<f32>((codes >> vec4<u32>(3u)) * 2u);
  let power = byte_at(row * stride + (p.{{DEPTH}} + 31u) / 32u * 4u, k >> 5u);
  let scale = select(bitcast<f32>((power - 1u) << 23u), 0.0, power < 2u);  // 2^(power - 128); below, subnormal
  return vec4<f32>(sizes) * signs * scale;
}
#endif
#if DTYPE == q4_1|q5_1
#include half
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let blocks = (p.{{DEPTH}} + 31u) / 32u;
#if DTYPE == q4_1
  let codes = four_codes(row * stride + (k >> 5u) * 4u, k);
  let scale = widened2(word_at(row * stride + blocks * 4u + (k >> 5u)));
#else
  let block = row * stride + (k >> 5u) * 5u;
  let codes = four_codes(block + 1u, k) + four_bits(word_at(block), k & 31u, 16.0);
  let scale = widened2(word_at(row * stride + blocks * 5u + (k >> 5u)));
#endif
  return fma(codes, vec4<f32>(scale.x), vec4<f32>(scale.y));
}
#endif
#if DTYPE == iq4_xs
#include half
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let block = row * stride + (k >> 8u) * 34u;
  let part = (k >> 5u) & 7u;
  let head = word_at(block);
  let low = (word_at(block + 1u) >> (4u * part)) & 15u;
  let high = (head >> (16u + 2u * part)) & 3u;
  let scale = widened(head & 0xffffu) * (f32(low | (high << 4u)) - 32.0);
  return four_valued(four_codes(block + 2u + 4u * part, k)) * scale;
}
#endif
#if DTYPE == q2_k
#include half
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let block = row * stride + (k >> 8u) * 21u;
  let side = (k >> 7u) & 1u;  // of 128 columns
  let quarter = (k >> 5u) & 3u;
  let both = byte_at(block, (k >> 4u) & 15u);
  let scale = widened2(word_at(block + 20u)) * vec2<f32>(f32(both & 15u), f32(both >> 4u));
  let codes = two_bits_of_bytes(word_at(block + 4u + side * 8u + ((k & 31u) >> 2u)), 2u * quarter);
  return fma(codes, vec4<f32>(scale.x), vec4<f32>(-scale.y));
}
#endif
#if DTYPE == q3_k
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let block = row * stride + (k >> 8u) * 27u;
  let side = (k >> 7u) & 1u;
  let quarter = (k >> 5u) & 3u;
  let at = (k & 31u) >> 2u;
  let group = (k >> 4u) & 15u;
  let low = (byte_at(block + 24u, group & 7u) >> (4u * (group >> 3u))) & 15u;
  let high = (byte_at(block + 26u, group & 3u) >> (2u * (group >> 2u))) & 3u;
  let scale = scale_of(row, stride, (p.{{DEPTH}} >> 8u) * 27u, k >> 8u) * (f32(low | (high << 4u)) - 32.0);
  let codes = two_bits_of_bytes(word_at(block + 8u + side * 8u + at), 2u * quarter);
  return (codes + bit_of_bytes(word_at(block + at), 4u * side + quarter, 4.0) - 4.0) * scale;
}
#endif
#if DTYPE == q4_k|q5_k
#include half
// The scale and the offset of 32 columns: 6 bits each, times a half of the block.
fn scale_and_offset(block: u32, part: u32) -> vec2<f32> {
  let both = widened2(word_at(block));
  let a = word_at(block + 1u);
  let b = word_at(block + 2u);
  let c = word_at(block + 3u);
  let shift = 8u * (part & 3u);
  var scale = (a >> shift) & 63u;
  var offset = (b >> shift) & 63u;
  if (part >= 4u) {
    scale = ((c >> shift) & 15u) | (((a >> shift) & 0xc0u) >> 2u);
    offset = ((c >> (shift + 4u)) & 15u) | (((b >> shift) & 0xc0u) >> 2u);
  }
  return vec2<f32>(both.x * f32(scale), both.y * f32(offset));
}

fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let part = (k >> 5u) & 7u;
  let at = (k & 31u) >> 2u;
#if DTYPE == q4_k
  let block = row * stride + (k >> 8u) * 36u;
  let codes = four_nibbles(word_at(block + 4u + (part >> 1u) * 8u + at), part & 1u);
#else
  let block = row * stride + (k >> 8u) * 44u;
  let low = four_nibbles(word_at(block + 12u + (part >> 1u) * 8u + at), part & 1u);
  let codes = low + bit_of_bytes(word_at(block + 4u + at), part, 16.0);
#endif
  let scale = scale_and_offset(block, part);
  return fma(codes, vec4<f32>(scale.x), vec4<f32>(-scale.y));
}
#endif
#if DTYPE == q6_k
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let start = row * stride + (k >> 8u) * 52u;
  let side = (k >> 7u) & 1u;  // of 128 columns
  let quarter = (k >> 5u) & 3u;
  let at = (k & 31u) >> 2u;
  let low = (word_at(start + side * 16u + (quarter & 1u) * 8u + at) >> (4u * (quarter >> 1u))) & 0x0f0f0f0fu;
  let high = ((word_at(start + 32u + side * 8u + at) >> (2u * quarter)) & 0x03030303u) << 4u;
  let codes = low | high;
  let group = side * 8u + quarter * 2u + ((k >> 4u) & 1u);
  let small = bitcast<i32>(word_at(start + 48u + (group >> 2u)) << (24u - 8u * (group & 3u))) >> 24u;
  let scale = scale_of(row, stride, (p.{{DEPTH}} >> 8u) * 52u, k >> 8u) * f32(small);
  let q = vec4<f32>(vec4<u32>(codes, codes >> 8u, codes >> 16u, codes >> 24u) & vec4<u32>(0xffu)) - 32.0;
  return q * scale;
}
#endif
