"""Make weft/embed/goldens.json, which `weft verify` compares with: some vectors of minilm.npz, as float16.

python tests/golden/embed/make_verify.py
"""

import base64
import json
from pathlib import Path

import numpy as np
from embed_texts import texts

HERE = Path(__file__).resolve().parent
COUNT = 8


def main() -> None:
    vectors = np.load(HERE / "minilm.npz")["vectors"]
    usable = [i for i, text in enumerate(texts()) if 0 < len(text) < 400]
    chosen = [usable[i] for i in np.linspace(0, len(usable) - 1, COUNT).astype(int)]
    golden = {
        "from": "sentence-transformers, float32, one text at a time",
        "texts": [texts()[i] for i in chosen],
        "dimension": vectors.shape[1],
        "float16": base64.b64encode(vectors[chosen].astype("<f2").tobytes()).decode(),
    }
    target = HERE.parents[2] / "weft" / "embed" / "goldens.json"
    target.write_text(json.dumps({"all-MiniLM-L6-v2": golden}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


main()
