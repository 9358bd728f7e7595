// adapter: the part of a table for a row, for all lanes. The table's first 256 words say where the parts of an adapter
// are, a word for each matrix; 0 is none. All numbers of parts are floats: adapters.py.
#include sequence
#bind table: array<u32>

struct Part {
  rank: u32,
  down: u32,  // [rank, K], or 0 where the product is replaced
  up: u32,  // [rank, N], or [K, N] where there is no `down`; 0 where there is none
  scale: u32,  // [rank]
  gain: u32,  // [N], or 0
  shift: u32,  // [N], or 0
  there: u32,
}
var<workgroup> own: Part;

fn number(i: u32) -> f32 { return bitcast<f32>(table[i]); }

fn part_of(lane: u32, token: u32, matrix: u32) -> Part {
  if (lane == 0u) {
    own = Part();
    let adapter = table[n(p.adapters + sequence_of(token, p.segments, p.sequences))];
    if (adapter > 0u) {
      let at = table[adapter + matrix];
      if (at > 0u) { own = Part(table[at], table[at + 1u], table[at + 2u], table[at + 3u], table[at + 4u], table[at + 5u], 1u); }
    }
  }
  return workgroupUniformLoad(&own);
}

fn adapted(part: Part, col: u32, value: f32) -> f32 {
  var y = value;
  if (part.gain > 0u) { y = y * number(part.gain + col); }
  if (part.shift > 0u) { y = y + number(part.shift + col); }
  return y;
}
