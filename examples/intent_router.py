"""Route messages to the right team by a small network on an embedder's vectors, in a file of a few kilobytes."""

import tempfile
import time
from pathlib import Path

import weft
from weft.tiny import TextClassifier

MESSAGES = {
    "billing": "Why was I charged twice?|My invoice is wrong|I want a refund|The payment failed|Cancel my subscription"
    "|Which card do you have on file?|The discount is missing from my bill|Can I pay once a year?",
    "delivery": "Where is my parcel?|The package arrived damaged|It was sent to the wrong address|When will it arrive?"
    "|The courier did not ring|Track my order|The box was empty|Deliver it next week, please",
    "account": "I forgot my password|Change my e-mail address|Delete my data|I cannot log in|Turn on two-factor login"
    "|Somebody else uses my account|Merge my two accounts|How do I change my name?",
}
NEW = ["I paid, but it says unpaid", "The driver left it in the rain", "It does not accept my password"]

embedder = weft.Embedder("all-MiniLM-L6-v2")
texts, labels = zip(*((text, label) for label, all_ in MESSAGES.items() for text in all_.split("|")))
router = TextClassifier(embedder, c=10).fit(texts, labels)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "router.tiny"
    router.save(path, int8=True)
    router = TextClassifier.load(path, embedder)
    print(f"a file of {path.stat().st_size:,} bytes")
for text, chances in zip(NEW, router.predict_proba(NEW)):
    best = int(chances.argmax())
    print(f"{text}\n  {router.classes[best]} ({chances[best]:.0%})")

assert router.network is not None
row = router.network.compiled(int8=True).row
vector = embedder.encode(NEW[:1])[0]
began = time.perf_counter()
for _ in range(1000):
    row(vector)
print(f"a vector is routed in {(time.perf_counter() - began) * 1e3:.1f} µs")
