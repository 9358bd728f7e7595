// softmax: exp(x - max) / sum over rows.
//
// Meaning  weft/ops/reduce.py
// Layout   rows of `cols` floats; the result may overwrite x
// Method   one workgroup a row; a lane takes every 64th column, then a tree over the lanes: the order depends on cols only
// Bound    memory
#include reduce
#include math
#params x, out, rows, cols

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let row = group_of(at, groups);
  if (row >= p.rows) { return; }
  let source = p.x + row * p.cols;
  let to = p.out + row * p.cols;
  var part = -3.402823e38;
  for (var c = lane; c < p.cols; c += LANES) { part = max(part, f(source + c)); }
  let largest = max_lanes(lane, part);
  part = 0.0;
  for (var c = lane; c < p.cols; c += LANES) { part += exp_(f(source + c) - largest); }
  let total = sum_lanes(lane, part);
  for (var c = lane; c < p.cols; c += LANES) { put(to + c, exp_(f(source + c) - largest) / total); }
}
