// mass: of every chunk of a row the largest number, and the sum of exp((number - largest) / temperature).
//
// Meaning  weft/backends/base.py, TopRows.masses
// Layout   x [rows, count]; by [rows] 1 / temperature; out [rows, chunks, 2]
//          MASKED: rows of bits, a word for 32 columns, whose columns without a bit are nothing
// Method   one workgroup of 256 a chunk of 1,024: a tree for the largest, then one for the sum
// Bound    memory
#include group
#params x, by, out, rows, count, chunks
#if MASKED
#params mask
#endif

const CHUNK = 1024u;
const LEAST = -3.40282347e38;
var<workgroup> parts: array<f32, 256>;

fn number(row: u32, column: u32) -> f32 {
  if (column >= p.count) { return LEAST; }
#if MASKED
  let word = arena[p.mask + row * ((p.count + 31u) / 32u) + column / 32u];
  if (((word >> (column & 31u)) & 1u) == 0u) { return LEAST; }
#endif
  return f(p.x + row * p.count + column);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  let group = group_of(at, groups);
  let row = group / p.chunks;
  if (row >= p.rows) { return; }
  let first = group % p.chunks * CHUNK + index;
  var most = LEAST;
  for (var i = 0u; i < CHUNK; i += 256u) { most = max(most, number(row, first + i)); }
  parts[index] = most;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step = step >> 1u) {
    if (index < step) { parts[index] = max(parts[index], parts[index + step]); }
    workgroupBarrier();
  }
  let largest = parts[0];
  workgroupBarrier();
  let by = f(p.by + row);
  var sum = 0.0;
  for (var i = 0u; i < CHUNK; i += 256u) {
    let one = number(row, first + i);
    // What is nothing, or as good as nothing, would overflow.
    if (one > LEAST && one > largest - 100.0 / by) { sum += exp((one - largest) * by); }
  }
  parts[index] = sum;
  workgroupBarrier();
  for (var step = 128u; step > 0u; step = step >> 1u) {
    if (index < step) { parts[index] += parts[index + step]; }
    workgroupBarrier();
  }
  if (index == 0u) {
    put(p.out + 2u * group, largest);
    put(p.out + 2u * group + 1u, parts[0]);
  }
}
