// lora_embedding: rows of an embedding table, changed by the adapter of their sequence.
//
// Meaning  weft/ops/matmul.py
// Layout   y, out [rows, width], out may be y; ids i32 [rows]; segments i32 [B+1], adapters i32 [B]; the table of [width, depth] as
//          lib/adapter
// Method   as lora with x one-hot at the token's id: down x is a look-up, and so is up x without a down. A workgroup takes
//          a row and 64 columns; one chain over the rank
// Bound    memory, the token's entries and one pass over up
#include group
#params y, ids, out, rows, width, depth, segments, sequences, adapters
#include adapter

const LANES = 64u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.width + LANES - 1u) / LANES;
  let group = group_of(at, groups);
  let row = group / across;
  if (row >= p.rows) { return; }
  let part = part_of(lane, row, 0u);
  let col = group % across * LANES + lane;
  if (col >= p.width) { return; }
  let id = u32(n(p.ids + row));
  var value = f(p.y + row * p.width + col);
  if (part.there > 0u && id < p.depth) {
    if (part.down > 0u) {
      var sum = 0.0;
      for (var r = 0u; r < part.rank; r++) {
        let inner = number(part.down + r * p.depth + id) * number(part.scale + r);
        sum = fma(number(part.up + r * p.width + col), inner, sum);
      }
      value += sum;
    } else if (part.up > 0u) {
      value = number(part.up + id * p.width + col);
    }
    value = adapted(part, col, value);
  }
  put(p.out + row * p.width + col, value);
}
