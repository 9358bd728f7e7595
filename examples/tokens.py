"""The tokens of a text, and the text of the tokens, piece by piece."""

import weft

model = weft.load("smollm2-135m-instruct")
text = "Weaving 101: the weft crosses the warp — überall."
ids = model.tokenizer.encode(text)
stream = model.tokenizer.stream()
for id in ids:
    print(f"{id:>6}  {model.tokenizer.token(id)!r:<16}  {stream.add(id)!r}")
print(repr(stream.finish()), model.tokenizer.decode(ids) == text)
