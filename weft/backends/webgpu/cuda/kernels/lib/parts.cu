// parts: how many 16-bit numbers a float is split into: three bfloats, or two halves, which have more digits; with SINGLE
// it is rounded to one.
#if SINGLE
const PARTS = 1u;
#else
#if BFLOAT
const PARTS = 3u;
#else
const PARTS = 2u;
#endif
#endif
