// segments: the largest number of each 256 columns of a row, of which a thread has pairs `index`, `index` + LANES, ...
var<workgroup> tops: array<f32, {{TOPS}}>;  // of 64 columns each

FN void find_largest(u32 index, const f32 (&kept)[2 * EACH]) {
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    f32 part = largest_of_warp(larger(larger(0.0, bitcast<u32>(kept[2 * i])), bitcast<u32>(kept[2 * i + 1])));
    if (index % 32u == 0u) tops[i * WARPS + index / 32u] = part;
  }
  w_workgroupBarrier();
}

// Of the 256 columns with this pair.
FN f32 largest_around(u32 pair) {
  u32 first = pair / 128u * 4u;
  f32 found = 0;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    if (first + i < EACH * WARPS) found = larger(found, bitcast<u32>(tops[first + i]));
  }
  return found;
}
