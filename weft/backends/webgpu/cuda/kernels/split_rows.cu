// split_rows: rows as sums of halves or bfloats, times a power of two, for products on matrix units.
//
// Meaning  row = (part 0 + part 1 [+ part 2]) * scale, up to 2^-22 of the largest number of 256 (bfloats: 2^-24); with NORM
//          of the row after rms_norm
// Layout   x [rows, depth]; out [rows][parts][depth padded to 32] of 16 bits, then a float for each 256 columns of a row
// Method   one workgroup a row: the largest number of 256 columns, whose power of two goes to 2^13, then the parts
// Bound    memory
#include group
#params x, split, scales, rows
#include parts
#include split
const LANES = 256u;
const DEEP = {{DEEP}}u;
const PADDED = {{PADDED}}u;
const EACH = {{EACH}}u;  // pairs of columns of a thread
const WARPS = LANES / 32u;
#include segments
#include root
#if NORM
#params eps: f32
#bind gain: array<f32>
#endif

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 row = group_of(at, groups);
  if (row >= p.rows) return;
  u32 from = p.x + row * DEEP;
#if NORM
  Squares squared = squares_of(index, from);
#endif
  f32 kept[2 * EACH];
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) {
    u32 c = 2u * (index + i / 2u * LANES) + i % 2u;
    kept[i] = c < DEEP ? f(from + c) : 0.0;
  }
#if NORM
  f32 root = root_of(index, squared, p.eps);
#pragma unroll
  for (u32 i = 0; i < 2 * EACH; i++) {
    u32 c = 2u * (index + i / 2u * LANES) + i % 2u;
    if (c < DEEP) kept[i] = kept[i] / root * gain[c];
  }
#endif
  find_largest(index, kept);
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 pair = index + i * LANES;
    f32 largest = largest_around(pair), scale = scale_for(largest);
    u32 parts[PARTS];
    split_pair(kept[2 * i] * scale, kept[2 * i + 1] * scale, parts);
    if (2u * pair < PADDED) {
      for (u32 j = 0; j < PARTS; j++) arena[p.split + (row * PARTS + j) * (PADDED / 2u) + pair] = parts[j];
      if (pair % 128u == 0u) put(p.scales + row * ((PADDED + 255u) / 256u) + pair / 128u, inverse_of(largest));
    }
  }
}
