// causal_conv: bias + sum over j of weight[c, j] x[t - W + 1 + j, c], channel by channel; earlier x from the state.
//
// Meaning  weft/ops/recurrent.py
// Layout   x [tokens, channels]; weight [channels, width]; bias [channels], a weight or in the arena; slots i32 [B, 2],
//          segments i32 [B+1]; a slot [width - 1, channels], oldest input first
// Method   one invocation an element, taps oldest first; as many more as a slot has numbers write those of each sequence.
//          No slot is read and written in one step
// Bound    memory
#include group
#include sequence
#bind weight: array<f32>
#if BIAS == weight
#bind bias: array<f32>
#endif
#if BIAS == value
#params bias
#endif
#if STATE
#bind rw state: array<f32>
#params slots
#endif
#params x, segments, out, tokens, sequences, channels, width

// An input of a sequence that begins at token `begin`; those before it are in its slot, the newest of them last.
fn input(token: i32, begin: i32, sequence: u32, channel: u32) -> f32 {
  if (token >= begin) { return f(p.x + u32(token) * p.channels + channel); }
#if STATE
  let slot = n(p.slots + 2u * sequence);
  if (slot < 0) { return 0.0; }
  return state[(u32(slot) * (p.width - 1u) + u32(token - begin + i32(p.width) - 1)) * p.channels + channel];
#else
  return 0.0;
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  let channel = i % p.channels;
  if (i < p.tokens * p.channels) {
    let token = i / p.channels;
    let sequence = sequence_of(token, p.segments, p.sequences);
    let begin = n(p.segments + sequence);
    var sum = 0.0;
#if BIAS == weight
    sum = bias[channel];
#endif
#if BIAS == value
    sum = f(p.bias + channel);
#endif
    for (var j = 0u; j < p.width; j++) {
      sum = fma(weight[channel * p.width + j], input(i32(token + j + 1u) - i32(p.width), begin, sequence, channel), sum);
    }
    put(p.out + i, sum);
    return;
  }
#if STATE
  let row = i / p.channels - p.tokens;  // of all slots that are written
  let sequence = row / (p.width - 1u);
  if (sequence >= p.sequences) { return; }
  let j = row % (p.width - 1u);
  let end = n(p.segments + sequence + 1u);
  let value = input(end + i32(j + 1u) - i32(p.width), n(p.segments + sequence), sequence, channel);
  let slot = u32(n(p.slots + 2u * sequence + 1u));
  state[(slot * (p.width - 1u) + j) * p.channels + channel] = value;
#endif
}
