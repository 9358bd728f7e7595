// add_layer_norm: layer_norm of x + y.
//
// Meaning  weft/ops/norm.py
// Layout   rows of `cols` floats; the result may overwrite x
// Method   one workgroup a row, which is read once: lib/layer_row
// Bound    memory
#include group
#bind weight: array<f32>
#bind bias: array<f32>
#params x, y, out, rows, cols, eps: f32
#include layer_row

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 row = group_of(at, groups);
  if (row >= p.rows) return;
  Row kept;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 c = index + i * LANES;
    kept.of[i] = c < COLUMNS ? f(p.x + row * COLUMNS + c) + f(p.y + row * COLUMNS + c) : 0.0;
  }
  finish_row(kept, index, p.out + row * COLUMNS, p.eps);
}
