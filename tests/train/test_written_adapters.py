"""Adapters that weft writes are loaded by peft, which computes the same logits with them."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import written_cases

from weft.runtime import Decoder, open_checkpoint

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "train" / "written-adapters.npz")
LIMIT = 2e-4  # of peft's logits


def test_every_case_was_loaded_by_peft():
    assert {name for name in GOLDEN.files if not name.startswith("digest")} == written_cases.CASES.keys()


@pytest.mark.parametrize("name", written_cases.CASES)
def test_peft_computes_the_same_logits(tmp_path, name):
    base, adapter = written_cases.write(tmp_path, name)
    # What is written today is, to the byte, what peft has loaded.
    assert written_cases.digest(adapter) == str(GOLDEN[f"digest of {name}"]), "run make_written_adapters.py"
    decoder = Decoder(open_checkpoint(base), compute="f32", kv_dtype="f32")
    ids = tiny.token_ids(tiny.CONFIGS[written_cases.CASES[name][0]], written_cases.TOKENS)
    found = decoder.logits(ids, adapter=decoder.adapters.load("a", adapter))
    assert np.abs(found - GOLDEN[name]).max() <= LIMIT
    assert np.abs(found - decoder.logits(ids)).max() > 100 * LIMIT  # the adapter does something
