// layer_row: one row of COLUMNS numbers in registers, less its mean and over its deviation.
//
// A lane takes every 128th column; then a tree over a warp's lanes, and the four warps in order.
const LANES = 128u;
const COLUMNS = {{COLS}}u;
const EACH = ({{COLS}}u + 127u) / 128u;
var<workgroup> quarters: array<f32, 8>;
struct Row { of: array<f32, EACH> }

FN f32 sum_of(u32 index, u32 first, f32 part) {
  for (u32 mask = 16u; mask > 0u; mask /= 2u) part = part + from_lane(part, mask);
  if (index % 32u == 0u) quarters[first + index / 32u] = part;
  w_workgroupBarrier();
  return (quarters[first] + quarters[first + 1u]) + (quarters[first + 2u] + quarters[first + 3u]);
}

FN void finish_row(Row& row, u32 index, u32 to, f32 eps) {
  f32 part = 0;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) part = part + row.of[i];
  f32 mean = sum_of(index, 0u, part) / f32(COLUMNS);
  part = 0;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    row.of[i] = row.of[i] - mean;
    if (index + i * LANES < COLUMNS) part = w_fma(row.of[i], row.of[i], part);
  }
  f32 root = w_sqrt(sum_of(index, 4u, part) / f32(COLUMNS) + eps);
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 c = index + i * LANES;
    if (c < COLUMNS) put(to + c, w_fma(row.of[i] / root, weight[c], bias[c]));
  }
}
