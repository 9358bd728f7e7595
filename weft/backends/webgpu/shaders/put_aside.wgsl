// put_aside: numbers of each row by column; where they were, the least number.
//
// Meaning  weft/backends/base.py, Executable.run_top: the columns that are put aside
// Layout   x [rows, width]; columns u32 [rows, each], none twice in a row; out [rows, each]. A column that is not there
//          gives the least number
// Method   one invocation a number
// Bound    latency: a few thousand numbers
#include group
#params x, columns, out, rows, width, each

const LEAST = 0xff7fffffu;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.rows * p.each) { return; }
  let column = arena[p.columns + i];
  if (column >= p.width) {
    arena[p.out + i] = LEAST;
    return;
  }
  let place = p.x + i / p.each * p.width + column;
  arena[p.out + i] = arena[place];
  arena[place] = LEAST;
}
