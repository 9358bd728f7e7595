// tiles: how the matrix unit (AMX) is told the shapes of its eight registers.
#pragma once
#include <immintrin.h>

#include "core/kernel.h"

namespace weft::ISA {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};
};

// All eight of 16 rows of 64 bytes.
WEFT_INLINE void shape_whole_tiles() {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = 16;
  _tile_loadconfig(&shapes);
}

// To be called between stores and the loads of tiles that read them: GCC's `_tile_loadd` does not say that it reads
// memory, and the compiler would move the stores behind it.
WEFT_INLINE void settle_stores() { __asm__ volatile("" ::: "memory"); }

}  // namespace weft::ISA
