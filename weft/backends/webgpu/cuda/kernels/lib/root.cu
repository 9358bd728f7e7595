// root: a row's root mean square, as rms_norm adds it up: lanes take every NORMth of DEEP columns, then a tree over them.
// In two parts, so that other loads can be asked for between them. LANES is a divisor or a multiple of NORM, or not.
#if NORM
var<workgroup> squares: array<f32, {{NORM}}>;
const TURNS = ({{NORM}}u + LANES - 1u) / LANES;
struct Squares { of: array<f32, TURNS> }

FN Squares squares_of(u32 index, u32 from_x) {
  Squares found;
#pragma unroll
  for (u32 turn = 0; turn < TURNS; turn++) {
    u32 lane = index + turn * LANES;
    f32 part = 0;
#pragma unroll
    for (u32 c = 0; c < DEEP; c += {{NORM}}u) {
      bool here = lane < {{NORM}}u && lane + c < DEEP;
      f32 x = here ? f(from_x + lane + c) : 0.0;
      if (here) part = w_fma(x, x, part);
    }
    found.of[turn] = part;
  }
  return found;
}

FN f32 root_of(u32 index, const Squares& found, f32 eps) {
#pragma unroll
  for (u32 turn = 0; turn < TURNS; turn++) {
    if (index + turn * LANES < {{NORM}}u) squares[index + turn * LANES] = found.of[turn];
  }
  w_workgroupBarrier();
  u32 at = index % 32u;
#if NORM == 256
  f32 first = (squares[at] + squares[at + 128u]) + (squares[at + 64u] + squares[at + 192u]);
  f32 second = (squares[at + 32u] + squares[at + 160u]) + (squares[at + 96u] + squares[at + 224u]);
  f32 total = first + second;
#else
  f32 total = squares[at] + squares[at + 32u];
#endif
  for (u32 mask = 16u; mask > 0u; mask /= 2u) total = total + from_lane(total, mask);
  return w_sqrt(total / f32(DEEP) + eps);
}
#endif
