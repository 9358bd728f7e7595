// top: the KEEP largest of every chunk of a row, larger first, lower ids first among equals.
//
// Meaning  numpy's sort of (-value, id); what is not finite comes first, so that it is seen
// Layout   FIRST: rows of `count` floats; else rows of `count` pairs of a key and an id, as this shader writes them.
//          out [rows, chunks, KEEP] pairs. A key is the float's bits in the order of unsigned integers, from 1 on; 0 is
//          nothing
//          MASKED: rows of bits, a word for 32 columns, whose columns without a bit are nothing
// Method   one workgroup of 256 a chunk of 1,024: a tree for KEEP 1, else a bitonic sort in the workgroup's memory
// Bound    memory; the sort's barriers
#include group
#params x, out, rows, count, chunks
#if MASKED
#params mask
#endif

const CHUNK = 1024u;
const KEEP = {{KEEP}}u;
var<workgroup> pairs: array<vec2<u32>, CHUNK>;

fn key_of(word: u32) -> u32 {
  if ((word & 0x7f800000u) == 0x7f800000u) { return 0xffffffffu; }
  if ((word & 0x7fffffffu) == 0u) { return 0x80000000u; }  // both zeros
  return select(word | 0x80000000u, ~word, (word & 0x80000000u) != 0u);
}

fn before(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  let group = group_of(at, groups);
  let row = group / p.chunks;
  if (row >= p.rows) { return; }
  let first = group % p.chunks * CHUNK;
  for (var i = index; i < CHUNK; i += 256u) {
    var pair = vec2<u32>(0u, 0xffffffffu);
    if (first + i < p.count) {
#if FIRST
      pair = vec2<u32>(key_of(arena[p.x + row * p.count + first + i]), first + i);
#if MASKED
      let word = arena[p.mask + row * ((p.count + 31u) / 32u) + (first + i) / 32u];
      if (((word >> (i & 31u)) & 1u) == 0u && pair.x != 0xffffffffu) { pair.x = 0u; }
#endif
#else
      let place = p.x + 2u * (row * p.count + first + i);
      pair = vec2<u32>(arena[place], arena[place + 1u]);
#endif
    }
    pairs[i] = pair;
  }
  workgroupBarrier();
#if KEEP == 1
  for (var step = CHUNK / 2u; step > 0u; step = step >> 1u) {
    for (var i = index; i < step; i += 256u) {
      if (before(pairs[i + step], pairs[i])) { pairs[i] = pairs[i + step]; }
    }
    workgroupBarrier();
  }
#else
  for (var size = 2u; size <= CHUNK; size = size << 1u) {
    for (var step = size >> 1u; step > 0u; step = step >> 1u) {
      for (var t = index; t < CHUNK / 2u; t += 256u) {
        let low = 2u * step * (t / step) + t % step;
        let a = pairs[low];
        let b = pairs[low + step];
        if (before(b, a) == ((low & size) == 0u)) {
          pairs[low] = b;
          pairs[low + step] = a;
        }
      }
      workgroupBarrier();
    }
  }
#endif
  for (var i = index; i < KEEP; i += 256u) {
    let place = p.out + 2u * (group * KEEP + i);
    arena[place] = pairs[i].x;
    arena[place + 1u] = pairs[i].y;
  }
}
