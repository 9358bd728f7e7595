"""Build and run the fuzz targets: `python tools/fuzz.py [target …] [--seconds 60] [--merge]`; `make fuzz` is the same.

Native targets (csrc/fuzz) are built with clang's libFuzzer, ASan and UBSan; Python ones (tests/fuzz) run under atheris,
on an extension built the same way. Each starts from the committed corpus and what earlier runs found, which is kept in
build/fuzz/corpus. An input that breaks something is kept in build/fuzz/findings, and the exit code is 1. `--merge`
then adds the fewest inputs that reach as much to the committed corpus.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
PACKAGE = BUILD / "python" / "weft"
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
NATIVE = sorted(path.stem for path in (ROOT / "csrc" / "fuzz").glob("*.cpp") if path.stem != "replay")
PYTHON = ("gguf_head", "gguf_model", "safetensors_header", "model_folder", "tekken", "merges_txt")
COMPILERS = (
    "clang++",
    *(f"clang++-{version}" for version in range(25, 16, -1)),
)  # 17 is the first that builds the core
# Of a single input. The time is by the clock: a busy machine must not look like a finding, so what took long is also
# reported.
LIMITS = ("-timeout=10", "-rss_limit_mb=512", "-print_final_stats=1")
SANITIZERS = {"ASAN_OPTIONS": "quarantine_size_mb=8", "UBSAN_OPTIONS": "print_stacktrace=1"}
MAX_BYTES = {"gguf_model": 40_000, "program": 16_384, "gguf_head": 16_384, "model_folder": 8_192}


def build() -> None:
    """The native targets in build/fuzz/fuzz, the package with its extension in build/fuzz/python."""
    compiler = os.environ.get("FUZZ_CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        sys.exit("fuzzing needs clang 17 or newer with its compiler-rt: the native targets are built with libFuzzer")
    PACKAGE.mkdir(parents=True, exist_ok=True)
    for path in (ROOT / "weft").iterdir():
        link = PACKAGE / path.name
        if path.suffix != ".so" and path.name != "__pycache__" and not link.is_symlink():
            link.symlink_to(path)
    options = ["-DWEFT_FUZZ=ON", "-DWEFT_SANITIZE=ON", f"-DCMAKE_CXX_COMPILER={compiler}", "-DWEFT_PYTHON=ON"]
    options += [f"-DWEFT_PYTHON_OUTPUT={PACKAGE}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "weft_fuzz", "_core"], check=True)


def command(target: str) -> list[str]:
    if target in NATIVE:
        return [str(BUILD / "fuzz" / f"fuzz_{target}")]
    return [sys.executable, str(ROOT / "tests" / "fuzz" / "run.py"), target]


def environment(target: str) -> dict[str, str]:
    if target in NATIVE:
        return {**os.environ, **SANITIZERS}
    place = importlib.util.find_spec("atheris")
    if place is None or place.origin is None:
        sys.exit("fuzzing the Python readers needs atheris: pip install atheris")
    # atheris brings libFuzzer and ASan in one library, which must be there before the extension is.
    runtime = Path(place.origin).parents[1] / "asan_with_fuzzer.so"
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    python = {"LD_PRELOAD": str(runtime), "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    python["ASAN_OPTIONS"] = SANITIZERS["ASAN_OPTIONS"] + ":detect_leaks=0"  # an interpreter has its own
    return {**os.environ, **SANITIZERS, **python, "PYTHONDONTWRITEBYTECODE": "1"}


def options(target: str, findings: Path) -> list[str]:
    found = [*LIMITS, f"-artifact_prefix={findings}/", f"-max_len={MAX_BYTES.get(target, 4096)}"]
    words = ROOT / "csrc" / "fuzz" / f"{target}.dict"
    return [*found, f"-dict={words}"] if words.is_file() else found


def run(target: str, seconds: int) -> bool:
    """Fuzz one target; True when nothing was found."""
    work, findings = BUILD / "corpus" / target, BUILD / "findings" / target
    for folder in (work, findings):
        folder.mkdir(parents=True, exist_ok=True)
    log = BUILD / f"{target}.log"
    with open(log, "wb") as out:
        arguments = [*command(target), *options(target, findings), f"-max_total_time={seconds}", str(work)]
        done = subprocess.run([*arguments, str(CORPUS / target)], env=environment(target), stdout=out, stderr=out)
    print(report(target, log.read_text(encoding="utf-8", errors="replace"), done.returncode), flush=True)
    return done.returncode == 0


def report(target: str, log: str, code: int) -> str:
    """One line: executions, edges, corpus."""
    last = (re.findall(r"^#\d+\s.*cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)", log, re.MULTILINE) or [("?",) * 4])[-1]
    runs = (
        re.findall(r"stat::number_of_executed_units: (\d+)", log)
        or re.findall(r"^#(\d+)\s", log, re.MULTILINE)
        or ["?"]
    )
    slowest = (re.findall(r"stat::slowest_unit_time_sec:\s+(\d+)", log) or ["?"])[-1]
    end = "nothing found" if code == 0 else f"FOUND something (exit code {code}): see build/fuzz/{target}.log"
    reached = f"{last[0]:>6} edges  {last[2]:>5} inputs ({last[3]})"
    return f"{target:20} {runs[-1]:>12} runs  {reached}  slowest {slowest} s  {end}"


def merge(target: str) -> None:
    """Add to the committed corpus the fewest inputs that reach every edge which it and the runs reached."""
    fresh = BUILD / "merged" / target
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    sources = [str(CORPUS / target), str(BUILD / "corpus" / target)]
    flags = [*options(target, BUILD / "findings" / target), "-set_cover_merge=1", "-use_counters=0"]
    subprocess.run([*command(target), *flags, str(fresh), *sources], env=environment(target), check=True)
    for path in fresh.iterdir():
        shutil.copyfile(path, CORPUS / target / path.name[:12])
    print(f"{target}: {len(list(fresh.iterdir()))} inputs reach every edge that was reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join((*NATIVE, *PYTHON)))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--merge", action="store_true")
    given = parser.parse_args()
    targets = given.targets or [*NATIVE, *PYTHON]
    if unknown := set(targets) - {*NATIVE, *PYTHON}:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    build()
    clean = [run(target, given.seconds) for target in targets] if given.seconds else []
    if given.merge:
        for target in targets:
            merge(target)
    sys.exit(0 if all(clean) else 1)


if __name__ == "__main__":
    main()
