"""Pictures of every view of the page, from a live server with real models: docs/page/*.png.

    python tools/screenshots.py
    python tools/screenshots.py chat=./model.gguf embed=./folder

Needs Chromium and the package playwright; where pngquant is installed the files get smaller. `docs/page/digest.txt`
says which page the pictures show, and a test compares. Names of views make only those.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "serve" / "page")]

from driving import send, settings  # noqa: E402

SERVE, OUT = ROOT / "weft" / "serve", ROOT / "docs" / "page"
MODELS = ("chat=smollm2-135m-instruct", "embed=all-MiniLM-L6-v2")
NAMES = {"chat": "smollm2-135m-instruct", "embed": "all-MiniLM-L6-v2"}
PDF = ROOT / "tests" / "golden" / "pdf" / "standard.pdf"
DESKTOP, PHONE = {"width": 1400, "height": 860}, {"width": 390, "height": 780}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--force-color-profile=srgb"]
WAIT_MS = 240_000
SCHEMA = """{
  "type": "object",
  "properties": {
    "title": { "type": "string", "maxLength": 40 },
    "minutes": { "type": "integer", "minimum": 1, "maximum": 240 },
    "steps": { "type": "array", "items": { "type": "string", "maxLength": 60 }, "maxItems": 4 }
  },
  "required": ["title", "minutes", "steps"],
  "additionalProperties": false
}"""


TOOLS = """[
  { "name": "get_weather", "parameters": { "type": "object", "properties": { "place": { "type": "string" } } } }
]"""
FORMULAS = r"""The sample mean is \(\bar x = \frac{1}{n} \sum_{i=1}^{n} x_i\), and

$$
\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}, \qquad A = \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
$$

| Protocol | Ordering | Reliability | Typical use |
|---|---|---|---|
| TCP | in the order it was sent | every byte, or the connection fails | web pages, mail |
| UDP | none | none | calls, games |

It costs $5 to $10 &amp; more: https://en.wikipedia.org/wiki/Weft_(weaving)."""


def digest() -> str:
    """Of every file of the page, by name and content."""
    files = sorted(path for path in SERVE.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg"))
    sums = [f"{path.relative_to(SERVE).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def start(page: Any) -> None:
    page.wait_for_timeout(300)


def chat(page: Any) -> None:
    settings(page, temperature=0, max_tokens=420)
    send(page, "Write a Python function that returns the n-th Fibonacci number. Only the function, short.")
    send(page, "Compare TCP and UDP in a table with three rows: ordering, reliability, typical use.")


def put(page: Any, messages: list[dict[str, Any]], **fields: Any) -> None:
    """Open a conversation that is made up here, for states that a small model does not reach by itself."""
    one = {"id": "conversation-shown", "model": NAMES["chat"], "messages": messages, **fields}
    page.evaluate(
        "one => { localStorage['weft.chat.' + one.id] = JSON.stringify(one); localStorage['weft.last'] = one.id; }", one
    )
    page.reload()
    page.wait_for_selector(".message")
    page.wait_for_timeout(900)


def formulas(page: Any) -> None:
    reply = {"model": NAMES["chat"], "content": FORMULAS, "finish": "stop"}
    put(page, [{"role": "user", "content": "Show me some formulas"}, {"role": "assistant", "replies": [reply]}])


def files(page: Any) -> None:
    page.locator("input[aria-label=Files]").first.set_input_files(str(PDF))
    page.wait_for_selector(".composer .chip-main")
    settings(page, temperature=0, max_tokens=60)
    send(page, "What is this file about? Answer in one sentence.")
    page.locator("input[aria-label=Files]").first.set_input_files(str(PDF))
    page.wait_for_selector(".composer .chip-main")
    page.fill("#composer", "And what does it cost?")
    page.wait_for_timeout(900)


def tools(page: Any) -> None:
    called = {"model": NAMES["chat"], "content": "Let me look.", "calls": [["get_weather", '{"place": "Oslo"}']]}
    messages = [
        {"role": "user", "content": "An earlier question, which no longer fits"},
        {"role": "assistant", "content": "And its answer."},
        {"role": "user", "content": "How is the weather in Oslo?"},
        {"role": "assistant", "replies": [{**called, "finish": "tool_calls"}]},
    ]
    waiting = [{"content": "And tomorrow?", "files": []}]
    put(page, messages, dropped=2, queue=waiting, settings={"tools": TOOLS}, title="The weather")


def models(page: Any) -> None:
    page.wait_for_selector(".model-card dd")
    page.wait_for_timeout(500)


def schema(page: Any) -> None:
    settings(page, temperature=0, max_tokens=300, json=True)
    page.get_by_label("JSON schema").fill(SCHEMA)
    send(page, "How do I make pancakes?")


def tokens(page: Any) -> None:
    settings(page, temperature=1, seed=7, max_tokens=110, probabilities=True)
    send(page, "Why is the sky blue? Answer in three sentences.")
    page.locator(".message-foot [aria-label='Token probabilities']").click()
    page.mouse.move(0, 0)
    page.locator(".token-text .token:is(.p3, .p4)").nth(2).focus()


def embeddings(page: Any) -> None:
    page.get_by_role("button", name="Example").click()
    page.get_by_role("button", name="Embed", exact=True).click()
    page.get_by_label("Search the texts by meaning").fill("stars and planets")
    page.get_by_label("Search the texts by meaning").press("Enter")
    page.wait_for_selector(".query-mark")
    box = page.locator("canvas").bounding_box()
    page.locator("canvas").hover(position={"x": box["width"] * 0.7, "y": box["height"] * 0.6})


def live(page: Any) -> None:
    """Watch while three conversations are written."""
    for text in ("Write a story of a weaver", "Explain how a loom works", "List ten kinds of cloth"):
        page.keyboard.press("Alt+1")
        page.keyboard.press("Alt+n")
        settings(page, max_tokens=400)
        send(page, text, wait=False)
    page.locator("#tab-live").click()
    page.wait_for_timeout(45_000)


def phone_live(page: Any) -> None:
    page.wait_for_timeout(4_000)


def phone_settings(page: Any) -> None:
    page.locator("button[aria-controls=settings]").click()
    page.wait_for_timeout(400)


def phone_chat(page: Any) -> None:
    phone_settings(page)
    settings(page, temperature=0, max_tokens=220)
    page.keyboard.press("Escape")
    send(page, "Name three weaves and what each is used for, as a list with bold names.")


def training(page: Any) -> None:
    """The example, learnt, evaluated and asked."""
    page.get_by_role("button", name="Example").click()
    page.get_by_label("Epochs").fill("6")
    page.get_by_role("button", name="Train", exact=True).click()
    page.get_by_role("button", name="Evaluate").click(timeout=4 * WAIT_MS)
    page.get_by_text("On held-out rows").wait_for()
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("button", name="Answer").and_(page.locator(":enabled")).wait_for()


def compare(page: Any) -> None:
    """A model beside its file in fewer bits."""
    page.get_by_label("Tokens", exact=True).fill("48")
    page.get_by_role("button", name="Answer").click()
    page.get_by_text("differs.").wait_for()
    page.get_by_label("Text for the perplexity").fill("The tower is 324 metres tall, the tallest structure in Paris.")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Answer").and_(page.locator(":enabled")).wait_for()


def smaller(chosen: dict[str, str], folder: str) -> Any:
    """The chat model in two bits."""
    from weft.quantise import Quantising
    from weft.serve import ModelSpec
    from weft.weights.sources import locate

    made = Path(folder) / "smaller.gguf"
    for _ in Quantising(locate(chosen["chat"]).path, made, type="q2_k"):
        pass
    return ModelSpec("smollm2-135m-q2_k", str(made))


def keyboard(page: Any) -> None:
    page.keyboard.press("?")


# A name, the address, the window, the colours, and what is done before the picture is taken.
VIEWS: list[tuple[str, str, dict[str, int], str, Callable[[Any], None]]] = [
    ("start", "", DESKTOP, "light", start),
    ("chat", "", DESKTOP, "light", chat),
    ("files", "", DESKTOP, "light", files),
    ("tools", "", DESKTOP, "light", tools),
    ("formulas", "", DESKTOP, "dark", formulas),
    ("models", "#models", DESKTOP, "light", models),
    ("schema", "", DESKTOP, "dark", schema),
    ("tokens", "", DESKTOP, "light", tokens),
    ("embeddings", "#embeddings", DESKTOP, "light", embeddings),
    ("embeddings-dark", "#embeddings", DESKTOP, "dark", embeddings),
    ("live", "", DESKTOP, "dark", live),
    ("training", "#training", {"width": 1400, "height": 1180}, "light", training),
    ("compare", "#compare", DESKTOP, "light", compare),
    ("keyboard", "", DESKTOP, "dark", keyboard),
    ("phone-chat", "", PHONE, "dark", phone_chat),
    ("phone-formulas", "", PHONE, "light", formulas),
    ("phone-tools", "", PHONE, "dark", tools),
    ("phone-models", "#models", PHONE, "light", models),
    ("phone-settings", "", PHONE, "light", phone_settings),
    ("phone-embeddings", "#embeddings", PHONE, "light", embeddings),
    ("phone-live", "#live", PHONE, "light", phone_live),
    ("sign-in", "", DESKTOP, "light", start),
]
LOCKED = ("sign-in",)  # of a server with a key
TWO = ("compare",)  # of a server with two models that generate


def take(browser: Any, url: str, view: tuple[str, str, dict[str, int], str, Callable[[Any], None]]) -> None:
    name, address, window, scheme, prepare = view
    phone = window is PHONE
    context = browser.new_context(
        viewport=window, color_scheme=scheme, reduced_motion="reduce", has_touch=phone, is_mobile=phone
    )
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(f"{url}/{address}")
    page.wait_for_selector("#key" if name in LOCKED else '.link-state[data-state="up"]', state="attached")
    page.wait_for_timeout(300)
    prepare(page)
    page.wait_for_timeout(200)
    page.screenshot(path=OUT / f"{name}.png")
    context.close()
    if shutil.which("pngquant"):
        path = str(OUT / f"{name}.png")
        subprocess.run(["pngquant", "--force", "--strip", "--speed", "1", "--output", path, "128", path], check=True)
    print(f"{name}.png", (OUT / f"{name}.png").stat().st_size)


def main(arguments: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    from weft.serve import BackgroundServer, ModelSpec, Settings

    chosen = dict(argument.split("=", 1) for argument in (*MODELS, *(a for a in arguments if "=" in a)))
    wanted = [argument for argument in arguments if "=" not in argument]
    specs = tuple(ModelSpec(NAMES[kind], source, preload=True) for kind, source in chosen.items())
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    OUT.mkdir(parents=True, exist_ok=True)
    lazy = tuple(replace(spec, preload=False) for spec in specs)
    with (
        tempfile.TemporaryDirectory() as runs,
        tempfile.TemporaryDirectory() as made,
        BackgroundServer(Settings(models=specs, port=0, training_dir=Path(runs))) as server,
        BackgroundServer(Settings(models=lazy, port=0, keys=("key",))) as locked,
        BackgroundServer(Settings(models=(lazy[0], smaller(chosen, made)), port=0)) as double,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        for view in VIEWS:
            if not wanted or view[0] in wanted:
                shown = locked if view[0] in LOCKED else double if view[0] in TWO else server
                take(browser, shown.url, view)
        browser.close()
    (OUT / "digest.txt").write_text(f"{digest()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
