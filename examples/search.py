"""Find the sentence that answers a question: embed once, compare with every query."""

import weft

SENTENCES = [
    "Warp threads run the length of a loom; weft threads cross them.",
    "Bread rises because yeast makes carbon dioxide.",
    "The tide follows the moon about twice a day.",
    "A prime number has no divisors but one and itself.",
]

embedder = weft.Embedder("all-MiniLM-L6-v2")
documents = embedder.encode_document(SENTENCES)
for query in ("Why does dough get bigger?", "What are the crossing threads in weaving called?"):
    scores = embedder.similarity(embedder.encode_query(query), documents)[0]
    best = int(scores.argmax())
    print(f"{query}\n  {scores[best]:.3f}  {SENTENCES[best]}")
