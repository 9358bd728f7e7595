"""The printed programs of the zoo, from tiny checkpoints:  python tests/models/programs.py  rewrites the goldens."""

import sys
import tempfile
from pathlib import Path

import tiny
from test_gguf_models import BLOCKED, write_model

from weft.graph.text import to_text
from weft.runtime import Decoder, Encoder, Head, open_checkpoint

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "programs"
RELATIVES = [name for name, cfg in tiny.CONFIGS.items() if name == cfg["model_type"] and tiny.decodes(cfg)]
ENCODERS = {
    "bert": Head("mean", normalise=True),
    "roberta": Head("mean", normalise=True),
    "modernbert": Head("first", normalise=True),
    "nomic_bert": Head("mean", normalise=True, skips=True),
    "qwen3": Head("last", normalise=True),
}


def printed(folder: Path) -> dict[str, str]:
    """Name of the golden -> its text."""
    llama = open_checkpoint(tiny.write_folder(folder / "llama", tiny.CONFIGS["llama-full-tied"]))
    quantised = open_checkpoint(write_model(folder / "llama.gguf", BLOCKED, "q4_1"))
    relatives = {f"{name}-f32": tiny.write_folder(folder / name, tiny.CONFIGS[name]) for name in RELATIVES}
    encoders = {name: tiny.write_folder(folder / f"{name}-encoder", tiny.CONFIGS[name]) for name in ENCODERS}
    programs = {
        "llama-f32": Decoder(llama).program,
        "llama-q4_1-int8": Decoder(quantised).program,
        **{name: Decoder(open_checkpoint(path)).program for name, path in relatives.items()},
        **{
            f"{name}-{head.pooling}": Encoder(open_checkpoint(encoders[name]), head).program()
            for name, head in ENCODERS.items()
        },
    }
    return {name: to_text(program) for name, program in programs.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in printed(Path(scratch)).items():
            (FOLDER / f"{name}.txt").write_text(text)
            print(FOLDER / f"{name}.txt", file=sys.stderr)
