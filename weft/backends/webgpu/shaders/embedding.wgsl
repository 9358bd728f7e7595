// embedding: rows of a table, widened.
//
// Meaning  weft/ops/gather.py
// Layout   ids i32 [count / cols]; weight rows of `stride` words, `first` to `first` + `rows` of the table in this buffer
// Method   one invocation for four neighbours
// Bound    memory
#include group
#include weights
#params ids, out, tokens, cols, stride, first, rows

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let quads = (p.cols + 3u) / 4u;
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.tokens * quads) { return; }
  let token = i / quads;
  let k = i % quads * 4u;
  let row = u32(n(p.ids + token)) - p.first;
  if (row >= p.rows) { return; }  // in another part of the table
  let values = weight4(row, p.stride, k);
  for (var c = 0u; c < min(4u, p.cols - k); c++) { put(p.out + token * p.cols + k + c, values[c]); }
}
