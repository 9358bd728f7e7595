// from_split: rows of x as split_rows left them, or with BARE as they lie in memory, in bfloat16.
#params split, padded
#if BARE
#else
#params scales
#endif

// A lane's eight columns of 32 of rows `low` and `low` + 8 of a part; rows beyond the end are zeros.
FN Halves halves_of(u32 row, u32 part, u32 k0, u32 t) {
  Halves found;
  found.low = row < p.rows ? columns_of(row, part, k0, t) : no_pairs();
  found.high = row + 8u < p.rows ? columns_of(row + 8u, part, k0, t) : no_pairs();
  return found;
}

FN Pairs columns_of(u32 row, u32 part, u32 k0, u32 t) {
  u32 at = p.split + (row * PARTS + part) * (p.padded / 2u) + k0 / 2u;
  Pairs found;
#if DTYPE == q2_k|q3_k|q6_k
  uint2 first = *(const uint2*)(arena + at + t * 2u), second = *(const uint2*)(arena + at + 8u + t * 2u);
  found.of[0] = first.x; found.of[1] = first.y; found.of[2] = second.x; found.of[3] = second.y;
#else
  uint4 all = *(const uint4*)(arena + at + t * 4u);
  found.of[0] = all.x; found.of[1] = all.y; found.of[2] = all.z; found.of[3] = all.w;
#endif
  return found;
}

// What a row's sums over 256 columns are multiplied by.
FN f32 scale_of(u32 row, u32 segment) {
#if BARE
  return 1.0;
#else
  return row < p.rows ? f(p.scales + row * ((p.padded + 255u) / 256u) + segment) : 0.0;
#endif
}
