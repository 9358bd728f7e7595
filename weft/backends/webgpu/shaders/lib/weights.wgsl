// weights: four neighbours of a row of a matrix, as the file stores them, widened. k is a multiple of 4; rows are padded
// to 32 columns and begin at a multiple of `stride` words.
#if DTYPE == f32
#bind weight: array<vec4<f32>>
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> { return weight[(row * stride + k) >> 2u]; }
#endif
#if DTYPE == f16
#include half
#bind weight: array<vec2<u32>>
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let pair = weight[(row * stride + (k >> 1u)) >> 1u];
  return vec4<f32>(widened2(pair.x), widened2(pair.y));
}
#endif
#if DTYPE == bf16
#bind weight: array<vec2<u32>>
fn weight4(row: u32, stride: u32, k: u32) -> vec4<f32> {
  let pair = weight[(row * stride + (k >> 1u)) >> 1u];
  return bitcast<vec4<f32>>(vec4<u32>(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
}
#endif
