"""Several requests share the engine's steps; each result is the same, bit for bit, as if it ran alone."""

import weft

PROMPTS = ["The capital of Italy is", "Water boils at", "def add(a, b):", "Roses are red,"]

model = weft.load("smollm2-135m-instruct")
requests = [weft.Request(model.tokenizer.encode(prompt), max_tokens=12) for prompt in PROMPTS]
handles = [model.engine.submit(request) for request in requests]
for prompt, handle in zip(PROMPTS, handles, strict=True):
    together = handle.result()
    alone = model.generate(prompt, max_tokens=12)
    print(f"{prompt}{together.text!r}  same alone: {together.tokens == alone.tokens}")
