// group: the choices of all tokens, sorted by expert, in the order of tokens.
//
// Meaning  weft/ops/experts.py
// Layout   chosen i32 [count / top, top]; rows i32 [count], starts i32 [experts + 1], places i32 [count / top, top]
// Method   one workgroup an expert: it counts the choices of experts before it and its own, a lane takes neighbouring
//          choices, and sums over the lanes say where each of them goes
// Bound    memory: every expert reads all choices twice
#include group
#params chosen, rows, starts, places, count, experts, top

const LANES = 64u;
var<workgroup> before: array<u32, LANES>;
var<workgroup> own: array<u32, LANES>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let expert = group_of(at, groups);
  if (expert >= p.experts) { return; }
  let each = (p.count + LANES - 1u) / LANES;
  let first = min(lane * each, p.count);
  let end = min(first + each, p.count);
  var fewer = 0u;
  var mine = 0u;
  for (var i = first; i < end; i++) {
    let chosen = arena[p.chosen + i];
    fewer += select(0u, 1u, chosen < expert);
    mine += select(0u, 1u, chosen == expert);
  }
  before[lane] = fewer;
  own[lane] = mine;
  workgroupBarrier();
  for (var step = 1u; step < LANES; step = step << 1u) {
    var of_before = before[lane];
    var of_own = own[lane];
    if (lane >= step) {
      of_before += before[lane - step];
      of_own += own[lane - step];
    }
    workgroupBarrier();
    before[lane] = of_before;
    own[lane] = of_own;
    workgroupBarrier();
  }
  let start = before[LANES - 1u];
  var place = start + own[lane] - mine;
  for (var i = first; i < end; i++) {
    if (arena[p.chosen + i] == expert) {
      arena[p.rows + place] = i / p.top;
      arena[p.places + i] = place;
      place++;
    }
  }
  if (lane == 0u) {
    arena[p.starts + expert] = start;
    if (expert + 1u == p.experts) { arena[p.starts + p.experts] = p.count; }
  }
}
