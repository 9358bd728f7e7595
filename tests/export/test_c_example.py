"""The example in C builds against the header and the library, and prints what Python computes."""

import shutil
import subprocess
from pathlib import Path

import libweft
import numpy as np
import pytest

from weft import Embedder

EXAMPLE = libweft.ROOT / "examples" / "c" / "embed.c"


def test_the_example_in_c_prints_what_python_computes(st_folder: Path, st_bundle: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    libweft.load()
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    folder = libweft.LIBRARY.parent
    link = [f"-L{folder}", "-lweft", "-lm", f"-Wl,-rpath,{folder}"]
    built = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{libweft.ROOT / 'csrc' / 'capi'}", str(EXAMPLE)]
    subprocess.run([*built, *link, "-o", str(tmp_path / "embed")], check=True, timeout=600)
    texts = ["the cat sat", "the quick brown fox"]
    command = [str(tmp_path / "embed"), str(st_bundle), *texts]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    a, b = Embedder(str(st_folder), threads=1).encode(texts).astype(np.float64)
    assert abs(float(said) - a @ b / np.sqrt((a @ a) * (b @ b))) < 1e-6
    refused = subprocess.run(
        [str(tmp_path / "embed"), str(tmp_path), "a", "b"], capture_output=True, text=True, timeout=600
    )
    assert refused.returncode == 1 and "manifest.json" in refused.stderr
