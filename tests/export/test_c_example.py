"""The examples in C and Rust build against the library, installed or not, and print what Python computes."""

import os
import shutil
import subprocess
from pathlib import Path

import libweft
import numpy as np
import pytest
from tiny_chat import write_chat_model

import weft
from weft import Embedder
from weft.export import export

EXAMPLE = libweft.ROOT / "examples" / "c" / "embed.c"
CHAT = EXAMPLE.parent / "chat.c"
RUST = libweft.ROOT / "examples" / "rust" / "chat.rs"
TEXTS = ["the quick brown fox", "one two three", "the lazy dog"]
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
CONSUMER = """cmake_minimum_required(VERSION 3.20)
project(consumer LANGUAGES C CXX)
find_package(weft REQUIRED)
foreach(kind shared static)
  add_executable(chat_${kind} "%s")
  target_link_libraries(chat_${kind} PRIVATE weft::weft_${kind})
endforeach()
"""


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


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def chat_bundle(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(chat_model), tmp_path_factory.mktemp("bundle") / "chat.weft").path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix that the library was installed into."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("cc") is None:
        pytest.skip("needs cmake and a C compiler")
    libweft.load()
    prefix = tmp_path_factory.mktemp("prefix")
    command = [cmake, "--install", str(libweft.LIBRARY.parent), "--component", "capi", "--prefix", str(prefix)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return prefix


def answer(model: weft.Model, embedder: Embedder, question: str) -> str:
    """What the example prints: the answer to the question, with the nearest of TEXTS as the system's message."""
    vectors = embedder.encode([question, *TEXTS]).astype(np.float64)
    system = TEXTS[int(np.argmax(vectors[1:] @ vectors[0]))]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return str(model.generate(model.chat_ids(messages), max_tokens=48).text) + "\n"


def run(program: Path, *words: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ if path is None else {**os.environ, "LD_LIBRARY_PATH": str(path)}
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600, check=False, env=env)


def test_a_program_of_forty_lines_embeds_and_chats(
    st_folder: Path, st_bundle: Path, chat_model: Path, chat_bundle: Path, installed: Path, tmp_path: Path
) -> None:
    """Built by pkg-config's flags against the installed library."""
    assert len(CHAT.read_text().splitlines()) <= 40
    libraries = next(installed.glob("lib*/**/pkgconfig")).parent
    found = (
        subprocess.run(
            ["pkg-config", "--cflags", "--libs", "weft"],
            env={**os.environ, "PKG_CONFIG_PATH": str(libraries / "pkgconfig")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if shutil.which("pkg-config")
        else None
    )
    flags = found.stdout.split() if found else [f"-I{installed / 'include'}", f"-L{libraries}", "-lweft"]
    assert found is None or found.returncode == 0, found.stderr
    command = ["cc", *WARNINGS, str(CHAT), *flags, "-o", str(tmp_path / "chat")]
    subprocess.run(command, check=True, timeout=600)
    model, embedder = weft.load(str(chat_model), compute="f32", threads=1), Embedder(str(st_folder), threads=1)
    done = run(tmp_path / "chat", st_bundle, chat_bundle, "the brown dog", *TEXTS, path=libraries)
    assert done.stdout == answer(model, embedder, "the brown dog"), done.stderr
    assert run(tmp_path / "chat", chat_bundle, chat_bundle, "a", "b", path=libraries).returncode == 1


def test_a_cmake_project_finds_the_installed_library(
    st_folder: Path, st_bundle: Path, chat_model: Path, chat_bundle: Path, installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER % CHAT)
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(tmp_path), "-B", str(build), f"-DCMAKE_PREFIX_PATH={installed}"]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    model, embedder = weft.load(str(chat_model), compute="f32", threads=1), Embedder(str(st_folder), threads=1)
    wanted = answer(model, embedder, "the brown dog")
    for kind in ("shared", "static"):
        done = run(build / f"chat_{kind}", st_bundle, chat_bundle, "the brown dog", *TEXTS)
        assert done.stdout == wanted, done.stderr


def test_the_example_in_rust(chat_model: Path, chat_bundle: Path, tmp_path: Path) -> None:
    compiler = shutil.which("rustc")
    found = compiler and subprocess.run([compiler, "--version"], capture_output=True, timeout=600, check=False)
    if not found or found.returncode:  # rustup's command may be there without a compiler
        pytest.skip("there is no Rust compiler here")
    libweft.load()
    assert len(RUST.read_text().splitlines()) <= 40
    folder = libweft.LIBRARY.parent
    command = [compiler, "--edition", "2021", str(RUST), "-L", str(folder), "-l", "weft", "-o", str(tmp_path / "chat")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    model = weft.load(str(chat_model), compute="f32", threads=1)
    ids = model.chat_ids([{"role": "user", "content": "Name three colours."}])
    done = run(tmp_path / "chat", chat_bundle, "Name three colours.", path=folder)
    assert done.stdout == model.generate(ids, max_tokens=256).text, done.stderr
    assert len((libweft.ROOT / "examples" / "go" / "embed.go").read_text().splitlines()) <= 40
