// weights: a matrix as the file stores it, read in fours and in parts of 32 columns, widened. Rows are padded to 32
// columns and are `stride` words apart, a multiple of 4. Blocks of q8_0, q4_0 and q6_k have their codes first and their
// scales, halves, at the end of the row: see weights.py.
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
#if DTYPE == q8_0|q4_0|q6_k
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
  let word = word_at(row * stride + (k >> 5u) * 4u + ((k & 15u) >> 2u));
  return (four_nibbles(word, (k >> 4u) & 1u) - 8.0) * scale;
}
#endif
#if DTYPE == q4_k
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
  let block = row * stride + (k >> 8u) * 36u;
  let part = (k >> 5u) & 7u;
  let scale = scale_and_offset(block, part);
  let word = word_at(block + 4u + (part >> 1u) * 8u + ((k & 31u) >> 2u));
  return fma(four_nibbles(word, part & 1u), vec4<f32>(scale.x), vec4<f32>(-scale.y));
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
