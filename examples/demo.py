"""Embed three sentences and compare them, then answer one question. The first run downloads both models."""

import time

import weft

SENTENCES = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again in March."]
QUESTION = "What is photosynthesis, in one sentence?"


def embed() -> None:
    start = time.perf_counter()
    embedder = weft.Embedder("all-MiniLM-L6-v2")
    embedder.encode("warm up")  # the first call compiles the program and packs the weights
    ready = time.perf_counter()
    vectors = embedder.encode(SENTENCES)
    done = time.perf_counter()
    print(f"all-MiniLM-L6-v2: {vectors.shape[1]} dimensions, cosine similarity\n")
    for sentence, row in zip(SENTENCES, embedder.similarity(vectors, vectors), strict=True):
        print("  ".join(f"{value:6.3f}" for value in row), f"  {sentence}")
    print(f"\nloaded in {ready - start:.2f} s, {len(SENTENCES)} sentences in {1000 * (done - ready):.1f} ms\n")


def answer() -> None:
    start = time.perf_counter()
    model = weft.load("smollm2-135m-instruct")
    ready = time.perf_counter()
    print(f"smollm2-135m-instruct: {model.defaults}\n\n> {QUESTION}\n")
    times = []  # of each token
    for piece in model.chat_stream([{"role": "user", "content": QUESTION}], max_tokens=120, seed=1):
        times += [time.perf_counter()] * len(piece.tokens)
        print(piece.text, end="", flush=True)
    first, rate = 1000 * (times[0] - ready), (len(times) - 1) / max(times[-1] - times[0], 1e-9)
    print(f"\n\nloaded in {ready - start:.2f} s, first token {first:.0f} ms, then {rate:.0f} tokens/s")


if __name__ == "__main__":
    embed()
    answer()
