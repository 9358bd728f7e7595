// attention_join: the parts that attention_paged left, joined in the order of the keys.
//
// Meaning  weft/ops/paged.py
// Layout   parts [T, heads, blocks] of a largest score, a sum of shares and `dim` sums; out [T, heads, dim]
// Method   one workgroup a query and head; an invocation has channels index and index + 256; four parts are read
//          before any is used
// Bound    memory
#include group
#include math
#include join
#if TURNED
#include walsh
#endif
#if SINKS
#bind sinks: array<f32>
#endif
#if REACH
#params reach
#endif
#params parts, blocks, positions, out, tokens, heads, dim, window

const KEYS = 64u;  // of a block

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  let group = group_of(at, groups);
  if (group >= p.tokens * p.heads) { return; }
  let own = u32(n(p.positions + group / p.heads)) + 1u;
#if REACH
  let end = u32(n(p.reach + group / p.heads)) + 1u;
#else
  let end = own;
#endif
  var begin = 0u;
  if (p.window > 0u && own > p.window) { begin = own - p.window; }
  let last = (end + KEYS - 1u) / KEYS;
  let each = p.dim + 2u;
  let c = min(index, p.dim - 1u);
  let d = min(index + 256u, p.dim - 1u);
  var joint = Joint(NEVER, 0.0, vec2<f32>());
  for (var block = begin / KEYS; block < last; block += 4u) {
#each i 4
    let at{{i}} = p.parts + (group * p.blocks + min(block + {{i}}u, last - 1u)) * each;
    let top{{i}} = f(at{{i}});
    let total{{i}} = f(at{{i}} + 1u);
    let sums{{i}} = vec2<f32>(f(at{{i}} + 2u + c), f(at{{i}} + 2u + d));
#end
#each i 4
    if (block + {{i}}u < last) { joint = join(joint, top{{i}}, total{{i}}, sums{{i}}); }
#end
  }
#if SINKS
  var result = shared_with(joint, sinks[group % p.heads]);
#else
  var result = joint.sums / joint.total;
#endif
#if TURNED
  if (index < p.dim) { turning[index] = result.x; }
  if (index + 256u < p.dim) { turning[index + 256u] = result.y; }
  turn(index, 256u, p.dim);
  if (index < p.dim) { result.x = turning[index]; }
  if (index + 256u < p.dim) { result.y = turning[index + 256u]; }
#endif
  if (index < p.dim) { put(p.out + group * p.dim + index, result.x); }
  if (index + 256u < p.dim) { put(p.out + group * p.dim + index + 256u, result.y); }
}
