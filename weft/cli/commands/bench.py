"""weft bench: the speed of models on this machine, as a share of its roofs and compared with other engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft.bench.peers import Candidate
    from weft.bench.report import Row

WORKLOADS = ("decode", "prefill", "parallel", "embed", "train", "startup")


def rounds() -> Callable[[options.F], options.F]:
    return click.option(
        "--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns of each engine and workload."
    )


def outputs() -> Callable[[options.F], options.F]:
    """Output options of every benchmark."""
    return options.together(
        click.option("--json", "as_json", is_flag=True, help="Print only the JSON line."),
        click.option(
            "--plot",
            is_flag=False,
            flag_value="-",
            metavar="[FILE.svg]",
            help="Draw bars on the terminal, or into an SVG file.",
        ),
        click.option(
            "--save", type=click.Path(dir_okay=False, path_type=Path), help="Append the JSON line to this file."
        ),
    )


def model_option(default: str) -> Callable[[options.F], options.F]:
    return click.option("-m", "--model", default=default, show_default=True, help="Name, folder or file.")


@click.group()
def command() -> None:
    """Measure how fast models run on this machine.

    Every benchmark prints medians with the range seen, the share of the machine's roof (peak bandwidth or arithmetic),
    which is measured in the same run, and one JSON line. `vs` measures other engines in turn with weft. See
    `weft bench COMMAND --help`.

    \b
    Examples:
      weft bench decode
      weft bench embed --compute bf16 --threads 1 --plot
      weft bench vs decode --prompt 4096 --peer-python ../peers/bin/python
    """


@command.command()
@options.threads()
@outputs()
def roofs(threads: int | None, **printing: Any) -> None:
    """Measure the machine's roofs: peak bandwidth and arithmetic.

    Reads memory (1 GB in huge pages), the third-level cache (64 MB) and the second-level cache (1 MB per thread), and
    times multiply-adds of each arithmetic unit. Every other benchmark measures the roofs it needs itself.

    \b
    Examples:
      weft bench roofs
      weft bench roofs --threads 1 --json
    """
    from weft.bench.measure import summary
    from weft.bench.report import Row
    from weft.bench.roofs import Roofs, standard
    from weft.runtime import plan_threads

    measured = Roofs(plan_threads(threads).count)
    rows = standard(measured)
    cells = [(r["name"], f"{r['median']:,.1f}", f"{r['low']:,.1f} to {r['high']:,.1f}", r["unit"]) for r in rows]
    drawn = [Row(r["unit"], r["name"], "", r["unit"], summary((r["low"], r["median"], r["high"]))) for r in rows]
    _finish("roofs", (("roof", "median", "range", "unit"), cells), rows, drawn, printing, threads=measured.threads)


@command.command()
@model_option(options.DEFAULT_GENERATOR)
@options.threads()
@options.decoder_compute()
@options.kv_dtype()
@click.option(
    "--tokens",
    type=(int, int),
    default=(32, 256),
    show_default=True,
    help="The two lengths whose difference gives the rate.",
)
@options.device()
@rounds()
@outputs()
def decode(
    model: str, threads: int | None, compute: str | None, kv_dtype: str | None, tokens: tuple[int, int], **printing: Any
) -> None:
    """Measure decoding: tokens per second of one sequence.

    The rate is the slope (N2 - N1) / (T(N2) - T(N1)), so prompt and set-up cancel out. Its roof is reading every weight
    once per token.

    \b
    Examples:
      weft bench decode
      weft bench decode -m model.gguf --threads 1 --tokens 32 128
    """
    _alone("decode", model, threads, compute, printing, kv_dtype, few=tokens[0], many=tokens[1])


@command.command()
@model_option(options.DEFAULT_GENERATOR)
@options.threads()
@options.decoder_compute()
@options.kv_dtype()
@click.option(
    "--prompt", type=click.IntRange(1), default=512, show_default=True, help="Length of the prompt in tokens."
)
@options.device()
@rounds()
@outputs()
def prefill(
    model: str, threads: int | None, compute: str | None, kv_dtype: str | None, prompt: int, **printing: Any
) -> None:
    """Measure prefill: tokens per second of a prompt.

    Its roof is the arithmetic of the matrix products in the best unit of the level.

    \b
    Examples:
      weft bench prefill
      weft bench prefill -m model.gguf --prompt 2048
    """
    _alone("prefill", model, threads, compute, printing, kv_dtype, prompt=prompt)


@command.command()
@model_option(options.DEFAULT_GENERATOR)
@options.threads()
@options.decoder_compute()
@options.kv_dtype()
@click.option("--sequences", type=click.IntRange(1), default=16, show_default=True, help="Number of sequences.")
@options.device()
@rounds()
@outputs()
def parallel(
    model: str, threads: int | None, compute: str | None, kv_dtype: str | None, sequences: int, **printing: Any
) -> None:
    """Measure a batch: tokens per second of several sequences at once.

    \b
    Examples:
      weft bench parallel
      weft bench parallel --sequences 8
    """
    _alone("parallel", model, threads, compute, printing, kv_dtype, sequences=sequences)


@command.command()
@model_option(options.DEFAULT_EMBEDDER)
@options.threads()
@options.encoder_compute(default="f32")
@click.option(
    "--texts", type=click.IntRange(1), default=1000, show_default=True, help="Number of mixed texts, of 8 to 64 tokens."
)
@options.device()
@rounds()
@outputs()
def embed(model: str, threads: int | None, compute: str, texts: int, **printing: Any) -> None:
    """Measure embedding: one short text, many mixed ones, documents.

    Times are from text to vector, tokenization included. The roof is the arithmetic of the matrix products.

    \b
    Examples:
      weft bench embed
      weft bench embed --compute bf16 --threads 1
    """
    _alone("embed", model, threads, compute, printing, texts=texts)


@command.command()
@model_option(options.DEFAULT_GENERATOR)
@options.threads()
@click.option("--url", "urls", multiple=True, help="A running server with OpenAI's API; may be given several times.")
@click.option(
    "--rate",
    "rates",
    type=float,
    multiple=True,
    help="Requests per second; may be given several times (default: 1, 2, 4, 8).",
)
@click.option(
    "--requests", type=click.IntRange(1), default=32, show_default=True, help="Number of requests at each rate."
)
@click.option("--prompt", type=click.IntRange(1), default=64, show_default=True, help="Length of a prompt in words.")
@click.option("--tokens", type=click.IntRange(1), default=64, show_default=True, help="Length of an answer in tokens.")
@click.option("--long", type=click.IntRange(0), default=0, help="Send long prompts of this many words in between.")
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds between these."
)
@outputs()
def serve(model: str, threads: int | None, urls: tuple[str, ...], rates: tuple[float, ...], **given: Any) -> None:
    """Measure a server under load: requests that arrive at random times, at several rates.

    Without --url a server with the model is started. All servers get the same requests at the same times. With --long,
    one long prompt comes every few seconds, and the figures are those of the others.

    \b
    Examples:
      weft bench serve -m model.gguf --rate 2 --rate 4
      weft bench serve -m smollm2 --rate 1 --requests 60 --prompt 16 --long 7500 --every 10
      weft bench serve --url http://127.0.0.1:11811 --url http://127.0.0.1:8080 -m smollm2
    """
    from weft import flags
    from weft.bench import load

    sizes = {name: given.pop(name) for name in ("requests", "prompt", "tokens", "long", "every_s")}
    plans = [load.Plan(rate, **sizes) for rate in rates or (1.0, 2.0, 4.0, 8.0)]
    lines = []
    with load.servers(urls, model, threads) as named:
        for plan in plans:
            for url, name in named:
                found = load.run(url, name, plan, flags.get("WEFT_API_KEY")).as_json()
                lines.append({"server": url if urls else "weft", **found})
    table = list(lines[0]), [[str(value) for value in line.values()] for line in lines]
    _finish("serve", table, lines, [], given, model=model, **sizes)


@command.command()
@options.threads()
@click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only weights of this type; may be given several times."
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    multiple=True,
    help="Rows of activations; may be given several times (default: 1, 16, 512).",
)
@click.option("--ops", is_flag=True, help="Measure every op of the catalogue on its largest sample instead.")
@outputs()
def kernels(threads: int | None, types: tuple[str, ...], rows: tuple[int, ...], ops: bool, **printing: Any) -> None:
    """Measure single kernels: matrix products of every weight type.

    A product of one row is limited by reading the weight, one of many rows by arithmetic: the lower roof is shown.

    \b
    Examples:
      weft bench kernels
      weft bench kernels --type q4_k --rows 1 --threads 1
      weft bench kernels --ops
    """
    from weft.bench import kernels as kernel
    from weft.bench.report import Row
    from weft.bench.roofs import Roofs
    from weft.runtime import plan_threads

    wrong = next((name for name in types if name not in kernel.TYPES), None)
    if wrong is not None:
        raise click.UsageError(f"{wrong!r} is not a weight type; types are {', '.join(kernel.TYPES)}")
    measured = Roofs(plan_threads(threads).count)
    made = kernel.every_op(measured) if ops else kernel.products(measured, types or kernel.TYPES, rows or kernel.ROWS)
    found, say = [], _progress()
    for item in made:
        found.append(item)
        say(f"{item.op} {item.shape}")
    done = [item.as_json() for item in found]
    columns = ("op", "operands", "µs", "GFLOP/s", "GB/s", "of roof")
    cells = [
        (r["op"], r["shape"], f"{r['us']:,.1f}", f"{r['gflop_s']:,.1f}", f"{r['gbyte_s']:,.1f}", _share(r))
        for r in done
    ]
    more = {"threads": measured.threads, "roofs": measured.as_json()}
    drawn = [Row(f"{item.op}, rate", item.shape, "", "GFLOP/s", item.gflop_s) for item in found]
    _finish("ops" if ops else "kernels", (columns, cells), done, drawn, printing, **more)


@command.command()
@model_option(options.DEFAULT_GENERATOR)
@options.threads()
@rounds()
@outputs()
def startup(model: str, threads: int | None, **printing: Any) -> None:
    """Measure a new process: time to its first token or vector, and peak memory.

    \b
    Examples:
      weft bench startup
      weft bench startup -m all-MiniLM-L6-v2
    """
    from weft.bench import cases, peers, versus

    plan = cases.plan("startup", model, threads=threads, sizes=cases.Sizes(texts=1))
    itself = peers.weft_candidates(plan.task)[:1]
    rows = versus.startup(plan, itself, rounds=printing["rounds"], files="", say=_progress())
    _finish_rows("startup", rows, printing, model=_name(model), threads=plan.threads)


@command.command()
@click.argument("workload", type=click.Choice(WORKLOADS))
@click.option("-m", "--model", help="Name, folder or file (default: SmolLM2, or MiniLM for embed).")
@options.threads()
@click.option(
    "--compute", type=click.Choice(["f32", "f16", "bf16", "int8"]), help="For embed and train: only this arithmetic."
)
@click.option(
    "--peer-python",
    "pythons",
    multiple=True,
    type=click.Path(),
    help="A Python interpreter that has peers installed; may be given several times (default: WEFT_PEER_PYTHON).",
)
@click.option(
    "--only",
    multiple=True,
    metavar="WORD",
    help="Only peers whose name and setting contain this; may be given several times.",
)
@click.option("--files", type=click.Path(file_okay=False), default="", help="Folder of models exported for peers.")
@click.option(
    "--peers",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the peers' scripts (default: benchmarks/peers).",
)
@click.option(
    "--sequences",
    type=click.IntRange(1),
    help="Number of sequences of parallel (16, or 4 with --quick), of chats of train (4).",
)
@click.option("--prompt", type=click.IntRange(1), help="Tokens of prompts: prefill (512), decode (16), train (512).")
@click.option("--quick", is_flag=True, help="Short runs, to check that everything works; sizes that are given hold.")
@options.device()
@rounds()
@outputs()
def vs(
    workload: str,
    model: str | None,
    threads: int | None,
    compute: str | None,
    pythons: tuple[str, ...],
    only: tuple[str, ...],
    files: str,
    folder: Path | None,
    sequences: int | None,
    prompt: int | None,
    quick: bool,
    **printing: Any,
) -> None:
    """Measure other engines in turn with weft.

    Each engine runs in its own process, with the interpreter that has it installed; model, threads, prompts and texts
    are the same. Every engine has one turn per round, so a disturbance of the machine affects all alike. With --device
    gpu the peers compute on the GPU, too: PyTorch with transformers, eager and compiled, and sentence-transformers.
    benchmarks/peers/README.md says what to install and to export.

    `train` measures steps of LoRA, on one text and on chats of 40 to 700 tokens, and the memory of a process that makes
    a step on 2,048 tokens. All train the same matrices, and must find the same loss before the first step. Where the
    machine has an arithmetic that is faster than f32, weft is measured in it too.

    \b
    Examples:
      weft bench vs decode --prompt 4096 --peer-python ../peers/bin/python
      weft bench vs embed --compute bf16 --files ../exports/minilm --plot embed.svg
      weft bench vs parallel --sequences 32 --only llama
      weft bench vs train --rounds 3 --peer-python ../peers/bin/python
      weft bench vs decode -m qwen3-f16.gguf --device cuda --prompt 512
    """
    from weft.bench import cases, versus

    say, rounds = _progress(), printing["rounds"]
    model = model or (options.DEFAULT_EMBEDDER if workload == "embed" else options.DEFAULT_GENERATOR)
    short = {"few": 8, "many": 32, "prompt": 64, "sequences": 4, "texts": 50, "longest": 120, "remembered": 256}
    short = short if quick else {}
    given = {"prompt": prompt, "after": prompt, "sequences": sequences, "chats": sequences}
    sizes = cases.Sizes(**{**short, **{name: value for name, value in given.items() if value is not None}})
    plan = cases.plan(workload, model, threads=threads, sizes=sizes)
    about: dict[str, Any] = {"model": _name(model), "threads": plan.threads, "rounds": rounds}
    candidates = _candidates(plan.task, pythons, folder, only, compute)
    if workload == "startup":
        rows = versus.startup(plan, candidates, rounds=rounds, files=files, say=say)
    else:
        rows, said = versus.compare(plan, candidates, rounds=rounds, files=files, say=say)
        about.update(said, workloads=plan.meanings, roofs=plan.roofs.as_json())
    if plan.remembered is not None and (others := _candidates(plan.remembered.task, pythons, folder, only, None)):
        rows += versus.peak_memory(plan.remembered, others, files=files, say=say)
        about["workloads"].update(plan.remembered.meanings)
    _finish_rows(f"vs {workload}", rows, printing, **about)
    for label, text in about.get("about", {}).items():
        if text:
            screen.note(f"{label}: {text}")


def _candidates(
    task: str, pythons: Sequence[str], folder: Path | None, only: Sequence[str], compute: str | None
) -> list[Candidate]:
    """weft, then the peers; what is not installed is said."""
    from weft import flags
    from weft.bench import peers

    interpreters = list(pythons or flags.get("WEFT_PEER_PYTHON") or [sys.executable])
    place = folder or peers.SCRIPTS
    found, lacking = peers.find_peers(task, interpreters, place, only, on_gpu=peers.gpu() is not None)
    for sentence in lacking:
        screen.note(f"not installed: {sentence}")
    return peers.beside(task, found, compute, interpreters, only)


def _alone(
    case: str,
    model: str,
    threads: int | None,
    compute: str | None,
    printing: dict[str, Any],
    kv_dtype: str | None = None,
    **sizes: int,
) -> None:
    """Measure weft alone, in this process."""
    from weft.bench import cases, peers, versus

    say = _progress()
    plan = cases.plan(case, model, threads=threads, sizes=cases.Sizes(**sizes))
    say(f"loading {model}")
    loading: dict[str, Any] = {"model": plan.path, "threads": plan.threads, "kv_dtype": kv_dtype}
    runner = peers.here(plan.task, compute or "default", **loading)
    found = [versus.measure(workload, [runner], printing["rounds"], say, plan.roofs) for workload in plan.workloads]
    about: dict[str, Any] = {"model": _name(model), "threads": plan.threads}
    about |= {"compute": runner.facts["compute"], "rounds": printing["rounds"]}
    about |= {name: runner.facts[name] for name in ("kv_dtype", "device") if name in runner.facts}
    about.update(workloads=plan.meanings, roofs=plan.roofs.as_json())
    _finish_rows(case, [row for rows in found for row in rows], printing, **about)


def _progress() -> Callable[[str], None]:
    """Shows what is being measured on one line of a terminal; messages about peers left out get their own lines."""
    from weft import flags

    alive = sys.stderr.isatty() and flags.progress_wanted()

    def say(message: str) -> None:
        if message.startswith("left out"):
            screen.note(message)
        elif alive:
            click.echo(f"\r\033[K{screen.cut(screen.clean(message), 100)}", err=True, nl=False)

    return say


def _finish_rows(case: str, rows: Sequence[Row], printing: dict[str, Any], **more: Any) -> None:
    from weft.bench import report

    _finish(case, report.table(rows), [row.as_json() for row in rows], rows, printing, **more)


def _finish(
    case: str,
    table: tuple[Sequence[str], Sequence[Sequence[str]]],
    lines: Sequence[dict[str, Any]],
    drawn: Sequence[Row],
    printing: dict[str, Any],
    **more: Any,
) -> None:
    """Print the table, the JSON line and bars; save the line and the picture if asked to."""
    from weft.bench import report

    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)
    record = json.dumps(report.record(case, lines, **more), ensure_ascii=False)
    if not printing["as_json"]:
        screen.table(*table, right=(*report.RIGHT, "µs", "GFLOP/s", "GB/s"))
    click.echo(record)
    if printing["save"]:
        with open(printing["save"], "a", encoding="utf-8") as file:
            file.write(record + "\n")
    if printing["plot"] == "-":
        click.echo("\n".join(report.bars(drawn)), err=printing["as_json"])
    elif printing["plot"]:
        title = ", ".join(filter(None, (case, more.get("model"), f"{more['threads']} threads")))
        Path(printing["plot"]).write_text(report.svg(drawn, title), encoding="utf-8")


def _name(model: str) -> str:
    """The model as results name it: only the last part of a path, so that results hold no paths of this machine."""
    return Path(model).name if Path(model).exists() else model


def _share(row: dict[str, Any]) -> str:
    return f"{100 * row['share']:.0f} % of {row['roof']}" if "share" in row else ""
