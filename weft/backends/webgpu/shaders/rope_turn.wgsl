// rope_turn: channels turned by a table of cosines and sines.
//
// Meaning  weft/ops/rope.py
// Layout   x [T, heads, dim]; table [T, 2 pairs]; the result may overwrite x
// Method   one workgroup a token and head; all channels are read before any is written
// Bound    memory
#include reduce
#include turned
#params x, table, out, rows, heads, dim, pairs

var<workgroup> row: array<f32, 512>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let group = group_of(at, groups);
  if (group >= p.rows) { return; }
  for (var c = lane; c < p.dim; c += LANES) {
    row[c] = turned(p.x + group * p.dim, p.table + group / p.heads * 2u * p.pairs, p.pairs, c);
  }
  workgroupBarrier();
  for (var c = lane; c < p.dim; c += LANES) { put(p.out + group * p.dim + c, row[c]); }
}
