"""A model is a program: count its ops, and measure the time of each in one step."""

from collections import Counter

import numpy as np

import weft
from weft.runtime import Step, pages_for

model = weft.load("smollm2-135m-instruct", context=512)
print(Counter(instr.op for instr in model.program.body).most_common())

ids = np.asarray(model.tokenizer.encode("The weft crosses the warp, over and under, " * 8), np.int32)
decoder, count = model.decoder, len(ids)
pages = decoder.pages.take(pages_for(count))
table = np.zeros((1, decoder.max_pages), np.int32)
table[0, : len(pages)] = pages
place = np.arange(count, dtype=np.int32)
step = Step(ids, place, np.array([0, count], np.int32), place[-1:], pages=table)
times: Counter[str] = Counter()
for op, nanoseconds in decoder.profile(step):
    times[op] += nanoseconds
decoder.pages.release(pages)
for op, nanoseconds in times.most_common():
    print(f"{op:<18}{nanoseconds / 1e6:8.2f} ms")
