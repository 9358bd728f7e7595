// lora: y' = gain * (y + up (scale * (down x))) + shift, in the rows of sequences that have an adapter.
//
// Meaning  weft/ops/matmul.py
// Layout   y, out [rows, width], out may be y; x [rows, depth]; segments i32 [B+1], adapters i32 [B]; with CHOSEN a token for
//          each row; with STARTS i32 [matrices + 1] rows lie in the order of a stack's matrices; the table as lib/adapter
// Method   a workgroup takes a row and 256 columns. Of down x it computes 16 numbers at a time, each shared by 16 lanes, whose
//          parts are added in order; one chain over the rank for each column
// Bound    memory, the adapter once for each row
#include group
#params y, x, out, rows, width, depth, segments, sequences, adapters
#if CHOSEN
#params chosen
#endif
#if STARTS
#params starts, matrices
#endif
#include adapter

const LANES = 256u;
const SHARED = 16u;  // lanes for one number of down x, and how many numbers are computed at a time
var<workgroup> parts: array<f32, LANES>;
var<workgroup> inner: array<f32, SHARED>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let across = (p.width + LANES - 1u) / LANES;
  let group = group_of(at, groups);
  let row = group / across;
  if (row >= p.rows) { return; }
  let col = group % across * LANES + lane;
  var token = row;
#if CHOSEN
  token = u32(n(p.chosen + row));
#endif
#if STARTS
  let part = part_of(lane, token, sequence_of(row, p.starts, p.matrices));
#else
  let part = part_of(lane, token, 0u);
#endif
  let here = col < p.width;
  let place = row * p.width + col;
  var value = 0.0;
  if (here) { value = f(p.y + place); }
  let from_x = p.x + row * p.depth;
  if (part.there > 0u) {
    if (part.down > 0u) {
      var sum = 0.0;
      for (var first = 0u; first < part.rank; first += SHARED) {
        let r = first + lane / SHARED;
        var some = 0.0;
        if (r < part.rank) {
          for (var k = lane % SHARED; k < p.depth; k += SHARED) {
            some = fma(number(part.down + r * p.depth + k), f(from_x + k), some);
          }
        }
        parts[lane] = some;
        workgroupBarrier();
        if (lane < SHARED && first + lane < part.rank) {
          var whole = 0.0;
          for (var j = 0u; j < SHARED; j++) { whole += parts[lane * SHARED + j]; }
          inner[lane] = whole * number(part.scale + first + lane);
        }
        workgroupBarrier();
        if (here) {
          for (var j = 0u; j < min(SHARED, part.rank - first); j++) {
            sum = fma(number(part.up + (first + j) * p.width + col), inner[j], sum);
          }
        }
        workgroupBarrier();
      }
      value += sum;
    } else if (part.up > 0u && here) {
      value = 0.0;
      for (var k = 0u; k < p.depth; k++) { value = fma(number(part.up + k * p.width + col), f(from_x + k), value); }
    }
    if (here) { value = adapted(part, col, value); }
  }
  if (here) { put(p.out + place, value); }
}
