"""A first visit, as pictures with times: docs/page/first-steps.

    python tools/first_steps.py
    python tools/first_steps.py smollm2-135m-instruct qwen2.5-coder-1.5b-instruct all-MiniLM-L6-v2

Starts `weft serve` as a user does, opens its page in Chromium, asks, attaches a file, switches the model and searches a
folder, in the page and with `weft search`. The models must be on this machine; the last one embeds.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "serve" / "page"), str(ROOT / "tools")]

from driving import finished, settings  # noqa: E402
from screenshots import DESKTOP, FLAGS, PDF, WAIT_MS  # noqa: E402

OUT = ROOT / "docs" / "page" / "first-steps"
MODELS = ["smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct", "all-MiniLM-L6-v2"]
NOTES = ("add-a-model.md", "add-an-op.md", "search-your-notes.md", "use-it-from-a-framework.md")
TERMINAL = """<style>
body { margin: 0; padding: 24px; background: #15191a; color: #dfe6e3; font: 15px/1.5 monospace; white-space: pre-wrap }
</style>"""


class Steps:
    """Steps with their times and pictures."""

    def __init__(self, browser: Any) -> None:
        self.rows: list[str] = []
        self._browser = browser

    def note(self, name: str, words: str, seconds: float) -> None:
        number = len(self.rows) + 1
        self.rows.append(f"| {number} | {words} | {seconds:.1f} s | ![{name}]({number}-{name}.png) |")
        print(number, name, f"{seconds:.1f} s")

    def path(self, name: str) -> Path:
        return OUT / f"{len(self.rows) + 1}-{name}.png"

    def in_page(self, page: Any, name: str, words: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        took = time.monotonic() - began
        page.wait_for_timeout(700)
        save(page, self.path(name))
        self.note(name, words, took)

    def in_terminal(self, name: str, words: str, text: str, seconds: float) -> None:
        page = self._browser.new_page(viewport={"width": 1100, "height": 420})
        page.set_content(TERMINAL + escape(text))
        save(page, self.path(name))
        page.close()
        self.note(name, words, seconds)


def save(page: Any, path: Path) -> None:
    page.screenshot(path=path)
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--strip", "--output", str(path), "128", str(path)], check=True)


def weft(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "weft", *arguments]


def start(models: list[str]) -> tuple[subprocess.Popen[str], str, list[str]]:
    """The server, its address, and the lines that it printed."""
    server = subprocess.Popen(
        weft("serve", *models, "--port", "0"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    for line in server.stdout or ():
        lines.append(line.rstrip())
        found = re.search(r"http://[\w.]+:\d+", line)
        if found:
            return server, found.group(), lines
    raise SystemExit("\n".join(lines))


def ask(page: Any, text: str) -> None:
    page.fill("#composer", text)
    page.get_by_label("Send", exact=True).click()
    finished(page)


def visit(steps: Steps, page: Any, url: str, models: list[str], folder: Path) -> None:
    def opened() -> None:
        page.goto(f"{url}/")
        page.wait_for_selector('.link-state[data-state="up"]')

    def attached() -> None:
        page.locator("input[aria-label=Files]").first.set_input_files(str(PDF))
        page.wait_for_selector(".composer .chip-main")
        ask(page, "What is this file about? One sentence.")

    def switched() -> None:
        page.locator(".model-choice").select_option(models[1])
        ask(page, "Write a Python function that reverses a list.")

    def searched() -> None:
        page.locator("#tab-embeddings").click()
        page.locator("input[aria-label=Folder]").set_input_files(str(folder))
        page.get_by_role("button", name="Embed", exact=True).click()
        page.get_by_label("Search the texts by meaning").fill("how do I register a new kernel?")
        page.keyboard.press("Enter")
        page.wait_for_selector(".ranking li")

    steps.in_page(page, "open", f"Open {re.sub(r'[0-9]+$', 'PORT', url)} in a browser", opened)
    settings(page, max_tokens=80)
    page.evaluate("for (const more of document.querySelectorAll('.more')) more.open = false")
    steps.in_page(page, "ask", "Ask; the model is loaded for it", lambda: ask(page, "What is a loom? Two sentences."))
    steps.in_page(page, "attach", "Attach a PDF file and ask about it", attached)
    if len(models) > 2:
        steps.in_page(page, "switch", f"Switch to {models[1]}, which is loaded, and ask", switched)
    steps.in_page(page, "folder", "Search a folder in the page", searched)


def search(steps: Steps, model: str, folder: Path) -> None:
    """The same folder on the command line."""
    shown, began = [], time.monotonic()
    build, query = ["index", "build", "notes", "-m", model], ["search", "notes.index", "how do I register a kernel?"]
    for command in (build, query):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(weft(*command), cwd=folder.parent, capture_output=True, text=True, env=env)
        if done.returncode:
            raise SystemExit(done.stderr)
        words = [f'"{word}"' if " " in word else word for word in command]
        shown += [f"$ weft {' '.join(words)}", (done.stderr + done.stdout).strip()[:1300], ""]
    steps.in_terminal("search", "Search it with `weft search`", "\n".join(shown), time.monotonic() - began)


def main(arguments: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    models = arguments or MODELS
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.png"):
        old.unlink()
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        folder = Path(place) / "notes"
        folder.mkdir()
        for name in NOTES:
            shutil.copy(ROOT / "docs" / "howto" / name, folder)
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        steps = Steps(browser)
        began = time.monotonic()
        server, url, lines = start(models)
        took = time.monotonic() - began
        try:
            shown = "\n".join([f"$ weft serve {' '.join(models)}", *lines]).replace(
                url, url.rsplit(":", 1)[0] + ":11811"
            )
            steps.in_terminal("serve", "Start the server", shown, took)
            context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
            context.set_default_timeout(WAIT_MS)
            visit(steps, context.new_page(), url, models, folder)
        finally:
            server.terminate()
            server.wait(30)
        search(steps, models[-1], folder)
        browser.close()
    head = [
        "# A first visit",
        "",
        f"Made by `tools/first_steps.py`; the times are those of that run, on {os.cpu_count()} cores.",
        "",
    ]
    table = ["| | step | time | |", "|---|---|---|---|", *steps.rows]
    (OUT / "README.md").write_text("\n".join([*head, *table]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
