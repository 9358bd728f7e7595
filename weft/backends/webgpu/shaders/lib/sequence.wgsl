// sequence: to which sequence of a step a token belongs, by its segments.
fn sequence_of(token: u32, segments: u32, sequences: u32) -> u32 {
  var low = 0u;
  var high = sequences;
  while (low + 1u < high) {  // segments[low] <= token < segments[high]
    let middle = (low + high) / 2u;
    if (u32(n(segments + middle)) <= token) { low = middle; } else { high = middle; }
  }
  return low;
}
