"""Make tiny-models.npz: what transformers computes in float32 for the tiny random checkpoints of tests/models/tiny.py.

python tests/golden/models/make_models.py        (needs torch and transformers; the package needs neither)

Later types have a script and a file each, make_<model_type>.py and <model_type>.npz: its configs, its tensors' shapes,
what weft refuses. Every file holds the versions that made it, under `versions`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "models"))
import tiny  # noqa: E402
from tiny import decodes  # noqa: E402


def run(name: str, cfg: dict[str, Any]) -> dict[str, np.ndarray]:
    config = transformers.AutoConfig.for_model(**{**cfg, "attn_implementation": "eager"})
    made = getattr(transformers, cfg["architectures"][0])
    has_pooler = cfg["model_type"] in ("bert", "roberta", "xlm-roberta", "nomic_bert", "mpnet")
    model = (made(config, add_pooling_layer=False) if has_pooler else made(config)).eval().float()
    if any(".experts." in key for key in tiny.shapes(cfg)):
        return outputs(name, cfg, loaded(cfg, made))
    start = "" if decodes(cfg) else "model."
    tensors = {key.removeprefix(start): torch.from_numpy(value) for key, value in tiny.weights(cfg).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert all("lm_head" in key or "position_ids" in key for key in missing), missing
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return outputs(name, cfg, model)


def loaded(cfg: dict[str, Any], made: Any, weights: dict[str, np.ndarray] | None = None) -> Any:
    """The model as transformers reads it from a file, where experts may be apart or together."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.write_folder(Path(folder), cfg, weights)
        model, report = made.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    assert not report["unexpected_keys"] and not report["mismatched_keys"], report
    assert all("lm_head" in key for key in report["missing_keys"]), report
    return model.eval()


def outputs(name: str, cfg: dict[str, Any], model: Any) -> dict[str, np.ndarray]:
    found = {}
    with torch.no_grad():
        for length in tiny.lengths(cfg):
            ids = torch.from_numpy(tiny.token_ids(cfg, length).astype(np.int64))[None]
            result = model(input_ids=ids, attention_mask=torch.ones_like(ids), **positions(cfg, ids))
            values = result.logits if decodes(cfg) else result.last_hidden_state
            found[f"{name}/{length}"] = values[0].numpy().astype(np.float32)
    return found


def positions(cfg: dict[str, Any], ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """RoBERTa's own rule, and MPNet's, gives a token with the padding's id no position; weft counts every token."""
    if "roberta" not in cfg["model_type"] and cfg["model_type"] != "mpnet":
        return {}
    counted = torch.arange(ids.shape[1])[None] + cfg["pad_token_id"] + 1
    return {"position_ids": counted}


def kept(values: np.ndarray) -> np.ndarray:
    return values[[row for row in tiny.KEPT if row < len(values)]]


def causal(name: str, cfg: dict[str, Any], results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The longest run, which holds the shorter ones; where a long text is read by another rule, the next one too."""
    *shorter, longest = tiny.lengths(cfg)
    same = {
        length: all(
            np.abs(results[f"{name}/{short}"] - results[f"{name}/{length}"][:short]).max() < 1e-4 for short in shorter
        )
        for length in (shorter[-1], longest)
    }
    assert same[shorter[-1]], name
    print(f"{name}: {'one rule' if same[longest] else 'another rule for long texts'}")
    lengths = (longest,) if same[longest] else (shorter[-1], longest)
    return {f"{name}/{length}": results[f"{name}/{length}"] for length in lengths}


def write(file: str, configs: dict[str, dict[str, Any]]) -> None:
    """Run transformers on these configs and keep what it computes in `file`."""
    arrays: dict[str, np.ndarray] = {}
    for name, cfg in configs.items():
        results = run(name, cfg)
        if decodes(cfg):
            results = causal(name, cfg, results)
        arrays.update({key: kept(values) for key, values in results.items()})
    versions = [f"{library.__name__} {library.__version__}" for library in (torch, transformers, np)]
    np.savez_compressed(HERE / file, **arrays, versions=np.array(versions))  # type: ignore[arg-type]
    print(f"{', '.join(versions)}: {len(arrays)} arrays")


if __name__ == "__main__":
    write("tiny-models.npz", tiny.FIRST)
