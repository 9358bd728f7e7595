"""Make tiny-rerank.npz: what CrossEncoder and transformers compute for the folders of tests/models/tiny_rerank.py.

PYTHONPATH=. python tests/golden/rerank/make_rerank.py       (needs sentence-transformers and the built package)
"""

import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_rerank import CROSS, LABELLED, PAIRS, write_cross, write_decoder  # noqa: E402

from weft.rerank import likelihood, yes_no  # noqa: E402


def yes_against_no(model: Any, tokenizer: Any) -> np.ndarray:
    """As the model's card has it: the pair between fixed words, and a softmax over two logits."""
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (yes_no.BEFORE, yes_no.AFTER))
    ids = [tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
    found = []
    for query, document in PAIRS:
        body = f"<Instruct>: {yes_no.INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        whole = [*before, *tokenizer.encode(body, add_special_tokens=False), *after]
        logits = model(input_ids=torch.tensor([whole])).logits[0, -1]
        found.append(torch.log_softmax(logits[ids], 0)[1].exp().item())
    return np.asarray(found, np.float32)


def query_likelihood(model: Any, tokenizer: Any) -> np.ndarray:
    """The mean log probability of the query's tokens after the document."""
    found = []
    for query, document in PAIRS:
        parts = [likelihood.BEFORE, document, likelihood.AFTER, f" {query}"]
        tokens = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
        whole, count = [*chain(*tokens)], len(tokens[-1])
        logits = model(input_ids=torch.tensor([whole])).logits[0]
        each = torch.log_softmax(logits.double(), -1)[torch.arange(len(whole) - 1), torch.tensor(whole[1:])]
        found.append(each[-count:].mean().item())
    return np.asarray(found, np.float32)


def main() -> None:
    arrays = {}
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        for name in CROSS.keys() - set(LABELLED[1:]):  # make_classify.py has those
            model = sentence_transformers.CrossEncoder(str(write_cross(Path(scratch) / name, name)), device="cpu")
            arrays[name] = np.stack([model.predict([pair])[0] for pair in PAIRS]).astype(np.float32)
        folder = write_decoder(Path(scratch) / "decoder")
        decoder = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        arrays["yes-no"] = yes_against_no(decoder, tokenizer)
        arrays["likelihood"] = query_likelihood(decoder, tokenizer)
    np.savez_compressed(HERE / "tiny-rerank.npz", **arrays)
    note_versions(HERE / "tiny-rerank.npz", "sentence-transformers", "transformers", "torch", "numpy")
    print({key: value.round(3).tolist() for key, value in arrays.items()})


main()
