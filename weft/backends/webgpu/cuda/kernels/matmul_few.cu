// matmul_few: act(x Wᵀ + b) of a few rows.
//
// Meaning  weft/ops/matmul.py
// Layout   x as split_rows left it; the rest as matmul_one
// Method   a workgroup takes {{TALL}} times 16 rows and 8 columns, a warp a segment of 256 of the depth; segments are added in
//          order, through the group's memory
// Bound    memory
#include group
#params out, rows, depth, width, stride, start, first, cols
#include finish
#include finish_two
#include fragments
#include from_split
const LANES = {{LANES}}u;
const WARPS = {{WARPS}}u;
const TALL = {{TALL}}u;
var<workgroup> sums: array<f32, {{SUMS}}>;  // [warp][row][column]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 across = (p.cols + 7u) / 8u;
  u32 group = group_of(at, groups);
  u32 row0 = group / across * (16u * TALL);
  if (row0 >= p.rows) return;
  u32 warp = index / 32u, lane = index % 32u, g = lane / 4u, t = lane % 4u;
  u32 col0 = group % across * 8u;
  u32 mine = row_of(w_min(col0 + g, p.cols - 1u)) * p.stride;
  u32 left = row_of(w_min(col0 + 2u * t, p.cols - 1u)) * p.stride;
  u32 right = row_of(w_min(col0 + 2u * t + 1u, p.cols - 1u)) * p.stride;
  f32 total[{{OWN}}];
  for (u32 i = 0; i < {{OWN}}u; i++) total[i] = 0;
  for (u32 begin = 0; begin < p.depth; begin += WARPS * SEGMENT) {
    u32 k = begin + warp * SEGMENT;
    Raw raw[8];
    for (u32 i = 0; i < 8; i++) {
      if (k + i * 32u < p.depth) raw[i] = raw_of(mine, k + i * 32u, t);
    }
    f32 sum[TALL][4], rest[TALL][4];
    for (u32 m = 0; m < TALL; m++) {
      for (u32 i = 0; i < 4; i++) sum[m][i] = rest[m][i] = 0;
    }
    for (u32 i = 0; i < 8; i++) {
      u32 k0 = k + i * 32u;
      if (k0 < p.depth) {
        Pairs w = pairs_of(raw[i], k0), less = no_pairs();
#if DTYPE == f32
        less = rests_of(raw[i], w);
#endif
        Scales first = scales_of(left, k0), second = scales_of(right, k0);
        for (u32 m = 0; m < TALL; m++) {
          array<Halves, PARTS> x;
          for (u32 j = 0; j < PARTS; j++) x[j] = halves_of(row0 + m * 16u + g, j, k0, t);
          f32 ones[4] = {0, 0, 0, 0};
          add_ones(ones, x);
          add_chunk(sum[m], rest[m], x, w, less, first, second, ones);
        }
      }
    }
    w_workgroupBarrier();
    for (u32 m = 0; m < TALL; m++) {
#if DTYPE == f32
      for (u32 i = 0; i < 4; i++) sum[m][i] = w_fma(rest[m][i], 0.00048828125, sum[m][i]);
#endif
      u32 to = (warp * TALL + m) * 128u + g * 8u + 2u * t;
      sums[to] = sum[m][0];
      sums[to + 1u] = sum[m][1];
      sums[to + 64u] = sum[m][2];
      sums[to + 65u] = sum[m][3];
    }
    w_workgroupBarrier();
    for (u32 i = 0; i < {{OWN}}u; i++) {
      u32 element = index + i * LANES;
      for (u32 w = 0; w < WARPS; w++) {
        if (element < 128u * TALL && begin + w * SEGMENT < p.depth) {
          total[i] += sums[w * TALL * 128u + element] * scale_of(row0 + element / 8u, begin / SEGMENT + w);
        }
      }
    }
  }
#if TWOS
  w_workgroupBarrier();
#endif
  for (u32 i = 0; i < {{OWN}}u; i++) {
    u32 element = index + i * LANES, row = row0 + element / 8u, col = col0 + element % 8u;
    if (element < 128u * TALL && row < p.rows) {
      f32 value = total[i];
#if TWOS
      sums[element] = value;
#else
      if (col < p.cols) finish(row, col, value);
#endif
    }
  }
#if TWOS
  w_workgroupBarrier();
  for (u32 pair = index; pair < 64u * TALL; pair += LANES) {
    u32 row = row0 + pair / 4u, col = col0 + pair % 4u * 2u;
    if (row < p.rows) finish_two(row, col, sums[2u * pair], sums[2u * pair + 1u]);
  }
#endif
}
