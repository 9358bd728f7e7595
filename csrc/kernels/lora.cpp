// lora: y' = gain * (y + up (scale * (down x))) + shift, in the rows of sequences that have an adapter.
//
// Meaning  weft/ops/matmul.py
// Layout   x [M, K], y and y' [M, N] contiguous, y' may be y; table: down and up in panels [panel][k][16], f32, f16 or bf16;
//          with starts [E+1] the table has a part for each of E matrices, and rows lie in the order of theirs
// Method   rows that follow one another under one adapter share tiles of registers; four chains over k for down, one over
//          the rank for up. A task is a strip of columns, and computes its own part of down x in scratch
// Bound    memory, one pass over the adapters of the batch, below about 8 rows; fma throughput from there on
#include "kernels/lora_parts.h"

namespace weft::ISA {

#if defined(WEFT_ISA_avx512)
constexpr int kRows = 4, kPanels = 4;
#elif defined(WEFT_ISA_avx2) || defined(WEFT_ISA_neon)
constexpr int kRows = 2, kPanels = 2;
#else
constexpr int kRows = 1, kPanels = 1;
#endif
constexpr int kChains = 4;  // of down: there are few panels, and a single chain is bound by latency
constexpr int64_t kRowStep = 32, kStrip = 256;  // rows and panels of a task at most

struct Task {
  const Operand &y, &x, &out;
  int64_t panel, panel_end;
  float* inner;  // scratch: scale * (down x) of kRows rows
};

template <int R, class T>
static void adapt_tile(const AdapterPart& part, const Task& task, int64_t row) {
  const int64_t cols = task.x.cols();
  const Finish finish{part, task.y.as<float>(), task.out.as<float>(), task.y.cols()};
  Rows rows{task.x.as<float>() + row * cols, cols, cols};
  if (part.down) {
    const int64_t rank = part.down->rows, padded = parts(rank, 16) * 16;
    const T* down = reinterpret_cast<const T*>(part.down->data);
    for (int64_t at = 0; at < rank; at += 16)
      tile<R, 1, kChains>(rows, down + at * cols, [&](int r, int, f32x16 sum) __attribute__((always_inline)) {
        store(task.inner + r * padded + at, sum * load_n(part.scale + at, smaller(16, rank - at)));
      });
    rows = {task.inner, padded, rank};
  }
  const T* up = reinterpret_cast<const T*>(part.up->data);
  int64_t panel = task.panel;
  for (; panel + kPanels <= task.panel_end; panel += kPanels)
    tile<R, kPanels, 1>(rows, up + panel * rows.depth * 16,
                        [&](int r, int p, f32x16 sum) __attribute__((always_inline)) { finish(row + r, panel + p, sum); });
  for (; panel < task.panel_end; ++panel)
    tile<R, 1, 1>(rows, up + panel * rows.depth * 16,
                  [&](int r, int p, f32x16 sum) __attribute__((always_inline)) { finish(row + r, panel + p, sum); });
}

// Rows [row, row_end), cut into tiles.
template <class T, int R = kRows>
static void adapt_rows(const AdapterPart& part, const Task& task, int64_t row, int64_t row_end) {
  for (; row + R <= row_end; row += R) adapt_tile<R, T>(part, task, row);
  if constexpr (R > 1)
    if (row < row_end) adapt_rows<T, R / 2>(part, task, row, row_end);
}

// Prefetches panels that are read soon: they are too few for the hardware's prefetcher to start. 1.3 times as fast.
WEFT_INLINE void ask_for(const Weight& weight, int64_t panel, int64_t panel_end) {
  const int64_t bytes = weight.cols * 16 * (weight.dtype == DType::f32 ? 4 : 2);
  for (int64_t i = panel * bytes; i < panel_end * bytes; i += 64) __builtin_prefetch(weight.data + i);
}

static void adapt(const AdapterPart& part, const Task& task, int64_t row, int64_t row_end) {
  if (part.down) {
    ask_for(*part.down, 0, parts(part.down->rows, 16));
    ask_for(*part.up, task.panel, task.panel_end);
  }
  if (part.up) {
    if (part.up->dtype == DType::f32) return adapt_rows<float>(part, task, row, row_end);
    if (part.up->dtype == DType::f16) return adapt_rows<F16>(part, task, row, row_end);
    return adapt_rows<Bf16>(part, task, row, row_end);
  }
  const int64_t columns = task.y.cols();
  const Finish finish{part, task.y.as<float>(), task.out.as<float>(), columns};
  for (; row < row_end; ++row) {
    if (!part.present()) keep_row(task.y, task.out, row, task.panel * 16, smaller(columns, task.panel_end * 16));
    else for (int64_t panel = task.panel; panel < task.panel_end; ++panel) finish(row, panel, zero());
  }
}

KERNEL(lora) {
  const Operand &y = call.in[0], &x = call.in[1], &out = call.out[0];
  const AdapterTable& table = *call.in[2].table;
  const Owners owner{call.in[3], call.in[4], call.in[5]};
  const int32_t* starts = call.n_in > 6 ? call.in[6].as<int32_t>() : nullptr;
  const int64_t rows = y.rows(), panels = parts(y.cols(), 16);
  const int64_t row_step = smaller(kRowStep, larger(1, parts(rows, 2 * worker.count))), row_tasks = parts(rows, row_step);
  const int64_t shared = row_tasks && row_tasks < worker.count ? parts(worker.count, row_tasks) : 1;
  const int64_t strip = smaller(kStrip, larger(8, parts(panels, shared))), strips = parts(panels, strip);
  for (int64_t number; (number = worker.next(row_tasks * strips)) < row_tasks * strips;) {
    const int64_t panel = number % strips * strip, end = smaller(rows, (number / strips + 1) * row_step);
    const Task task{y, x, out, panel, smaller(panels, panel + strip), reinterpret_cast<float*>(worker.scratch)};
    for (int64_t row = number / strips * row_step, next; row < end; row = next) {
      const int32_t index = owner(row);
      const int64_t matrix = starts ? segment_of(starts, table.matrices(), row) : 0;
      const int64_t last = starts ? smaller(end, starts[matrix + 1]) : end;
      for (next = row + 1; next < last && owner(next) == index;) ++next;
      adapt(table.part(index, matrix), task, row, next);
    }
  }
}

}  // namespace weft::ISA
