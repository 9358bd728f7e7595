"""Print an answer as it is generated, and how long it took."""

import time

import weft

model = weft.load("smollm2-135m-instruct")
messages = [{"role": "user", "content": "Name three things that are woven."}]
start, count = time.perf_counter(), 0
for piece in model.chat_stream(messages, max_tokens=60, temperature=0.7, top_p=0.9, seed=3):
    print(piece.text, end="", flush=True)
    count += len(piece.tokens)
print(f"\n({count} tokens in {time.perf_counter() - start:.2f} s, finished by {piece.finish_reason})")
