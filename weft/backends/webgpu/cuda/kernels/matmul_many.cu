// matmul_many: act(x Wᵀ + b) of many rows.
//
// Meaning  weft/ops/matmul.py
// Layout   x as split_rows left it; the rest as matmul_one
// Method   four warps take 128 rows and {{BROAD}} columns, one of them 64 rows and half of the columns, all in registers:
//          neighbours read the same rows, which the first cache has
// Bound    matrix units
#include group
#params out, rows, depth, width, stride, start, first, cols
#include finish
#include finish_two
#include fragments
#include from_split
const TALL = 4u;          // times 16 rows of a warp
const WIDE = {{WIDE}}u;   // times 8 columns
const BROAD = {{BROAD}}u;  // columns of all

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 across = (p.cols + BROAD - 1u) / BROAD;
  u32 group = group_of(at, groups);
  u32 warp = index / 32u, lane = index % 32u, g = lane / 4u, t = lane % 4u;
  u32 row0 = group / across * 128u + warp / 2u * 64u;
  u32 col0 = group % across * BROAD + warp % 2u * (8u * WIDE);
  if (row0 >= p.rows || col0 >= p.cols) return;
  f32 total[TALL][WIDE][4];
  for (u32 m = 0; m < TALL; m++) {
    for (u32 j = 0; j < WIDE; j++) {
      for (u32 i = 0; i < 4; i++) total[m][j][i] = 0;
    }
  }
  for (u32 begin = 0; begin < p.depth; begin += SEGMENT) {
    f32 sum[TALL][WIDE][4], rest[TALL][WIDE][4];
    for (u32 m = 0; m < TALL; m++) {
      for (u32 j = 0; j < WIDE; j++) {
        for (u32 i = 0; i < 4; i++) sum[m][j][i] = rest[m][j][i] = 0;
      }
    }
    u32 end = w_min(begin + SEGMENT, p.depth);
    for (u32 k0 = begin; k0 < end; k0 += 32u) {
      Pairs w[WIDE], less[WIDE];
      Scales first[WIDE], second[WIDE];
      for (u32 j = 0; j < WIDE; j++) {
        Raw raw = raw_of(row_of(w_min(col0 + j * 8u + g, p.cols - 1u)) * p.stride, k0, t);
        w[j] = pairs_of(raw, k0);
        less[j] = no_pairs();
#if DTYPE == f32
        less[j] = rests_of(raw, w[j]);
#endif
        first[j] = scales_of(row_of(w_min(col0 + j * 8u + 2u * t, p.cols - 1u)) * p.stride, k0);
        second[j] = scales_of(row_of(w_min(col0 + j * 8u + 2u * t + 1u, p.cols - 1u)) * p.stride, k0);
      }
      for (u32 m = 0; m < TALL; m++) {
        array<Halves, PARTS> x;
        for (u32 j = 0; j < PARTS; j++) x[j] = halves_of(row0 + m * 16u + g, j, k0, t);
        f32 ones[4] = {0, 0, 0, 0};
        add_ones(ones, x);
        for (u32 j = 0; j < WIDE; j++) add_chunk(sum[m][j], rest[m][j], x, w[j], less[j], first[j], second[j], ones);
      }
    }
    for (u32 m = 0; m < TALL; m++) {
      u32 row = row0 + m * 16u + g;
      f32 scales[2] = {scale_of(row, begin / SEGMENT), scale_of(row + 8u, begin / SEGMENT)};
      for (u32 j = 0; j < WIDE; j++) {
        for (u32 i = 0; i < 4; i++) {
#if DTYPE == f32
          sum[m][j][i] = w_fma(rest[m][j][i], 0.00048828125, sum[m][j][i]);
#endif
          total[m][j][i] += sum[m][j][i] * scales[i / 2];
        }
      }
    }
  }
  for (u32 m = 0; m < TALL; m++) {
    for (u32 half = 0; half < 2; half++) {
      u32 row = row0 + m * 16u + g + half * 8u;
      if (row < p.rows) {
        for (u32 j = 0; j < WIDE; j++) {
          u32 col = col0 + j * 8u + 2u * t;
          f32 left = total[m][j][2 * half], right = total[m][j][2 * half + 1];
          finish_two(row, col, left, right);
        }
      }
    }
  }
}
