// rms_norm: x / sqrt(mean(x^2) + eps) * weight over rows.
//
// Meaning  weft/ops/norm.py
// Layout   rows of `cols` floats; the result may overwrite x
// Method   one workgroup a row; a lane takes every LANES-th column and keeps it, then a tree over the lanes: the order
//          depends on cols only
// Bound    memory
#include reduce
#bind weight: array<f32>
#params x, out, rows, cols, eps: f32

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let row = group_of(at, groups);
  if (row >= p.rows) { return; }
  var kept: array<f32, {{EACH}}>;
  var part = 0.0;
  for (var i = 0u; i < {{EACH}}u; i++) {
    let c = lane + i * LANES;
    if (c < p.cols) { kept[i] = f(p.x + row * p.cols + c); }
  }
  for (var i = 0u; i < {{EACH}}u; i++) { part = fma(kept[i], kept[i], part); }
  let root = sqrt(sum_lanes(lane, part) / f32(p.cols) + p.eps);
  for (var i = 0u; i < {{EACH}}u; i++) {
    let c = lane + i * LANES;
    if (c < p.cols) { put(p.out + row * p.cols + c, kept[i] / root * weight[c]); }
  }
}
