// layer_norm: (x - mean) / sqrt(variance + eps) * weight + bias over rows.
//
// Meaning  weft/ops/norm.py
// Layout   rows of `cols` floats; the result may overwrite x
// Method   one workgroup a row; a lane takes every 64th column, then a tree over the lanes: the order depends on cols only
// Bound    memory
#include reduce
#bind weight: array<f32>
#bind bias: array<f32>
#params x, out, rows, cols, eps: f32

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let row = group_of(at, groups);
  if (row >= p.rows) { return; }
  let source = p.x + row * p.cols;
  let to = p.out + row * p.cols;
  var part = 0.0;
  for (var c = lane; c < p.cols; c += LANES) { part += f(source + c); }
  let mean = sum_lanes(lane, part) / f32(p.cols);
  part = 0.0;
  for (var c = lane; c < p.cols; c += LANES) {
    let offset = f(source + c) - mean;
    part = fma(offset, offset, part);
  }
  let root = sqrt(sum_lanes(lane, part) / f32(p.cols) + p.eps);
  for (var c = lane; c < p.cols; c += LANES) { put(to + c, fma((f(source + c) - mean) / root, weight[c], bias[c])); }
}
