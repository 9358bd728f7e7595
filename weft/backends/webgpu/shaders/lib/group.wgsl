// group: which one of the launch this workgroup is. Launches of more than 65,535 are folded into two axes.
fn group_of(at: vec3<u32>, groups: vec3<u32>) -> u32 { return at.x + at.y * groups.x; }
