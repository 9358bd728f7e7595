// parts: how many 16-bit numbers a float is split into: three bfloats, or two halves, which have more digits.
#if BFLOAT
const PARTS = 3u;
#else
const PARTS = 2u;
#endif
