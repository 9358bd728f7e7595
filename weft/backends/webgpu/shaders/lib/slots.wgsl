// slots: the sequence of a workgroup: its tokens, the slot its state is read from, -1 for none, and the one it is written
// to. Without STATE a sequence is a whole text, and nothing is kept.
#if STATE
#bind rw state: array<f32>
#params slots
#endif
var<workgroup> found: vec4<i32>;

// For all lanes.
fn text_of(lane: u32, sequence: u32) -> vec4<i32> {
  if (lane == 0u) {
    found = vec4<i32>(n(p.segments + sequence), n(p.segments + sequence + 1u), -1, -1);
#if STATE
    found.z = n(p.slots + 2u * sequence);
    found.w = n(p.slots + 2u * sequence + 1u);
#endif
  }
  return workgroupUniformLoad(&found);
}
