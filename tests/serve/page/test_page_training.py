"""The training tab: a run started, watched, stopped, evaluated, asked, chatted with and deleted."""

import json

import httpx
import pytest
from driving import until
from tiny_chat import write_chat_model

ROWS = "\n".join(
    json.dumps(
        {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i}{i}"}]}
    )
    for i in range(24)
)

PATIENCE_S = 120  # a run is a process that has to start


@pytest.fixture(scope="session")
def specs(tmp_path_factory):
    from weft.serve import ModelSpec

    return (ModelSpec("tiny", str(write_chat_model(tmp_path_factory.mktemp("page") / "tiny.gguf")), {"threads": 1}),)


@pytest.fixture(scope="session")
def server(specs, tmp_path_factory):
    from weft.serve import BackgroundServer, Settings

    folders = {"training_dir": tmp_path_factory.mktemp("runs"), "registry": tmp_path_factory.mktemp("registry")}
    with BackgroundServer(Settings(models=specs, port=0, **folders)) as running:
        yield running


def train(page, name, epochs):
    page.get_by_label("Rows", exact=True).fill(ROWS)
    page.get_by_label("Name of the adapter").fill(name)
    page.get_by_label("Epochs").fill(str(epochs))
    page.get_by_label("Learning rate").fill("0.01")
    page.get_by_label("Tokens a step").fill("200")
    page.get_by_label("Held out, %").fill("20")
    page.get_by_role("button", name="Train", exact=True).click()


def state(page):
    return page.locator(".run .badge").inner_text()


def test_a_run_from_rows_to_a_chat(open_page):
    page = open_page("#training")
    page.set_default_timeout(1000 * PATIENCE_S)
    train(page, "first", 3)
    page.locator(".loss-curve .curve.s0").wait_for(state="attached")
    until(page, lambda: state(page) == "Done", "the run is done", PATIENCE_S)
    label = page.locator(".loss-curve svg").get_attribute("aria-label")
    assert label.startswith("Loss: ") and "on held-out rows" in label
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text("On held-out rows").wait_for()
    cells = page.get_by_role("row", name="Loss").locator("td").all_inner_texts()
    assert float(cells[1].split()[0]) < float(cells[0])
    assert "better" in page.get_by_role("row", name="Loss").locator("td").last.get_attribute("class")
    page.get_by_role("button", name="Answer").click()
    until(page, page.get_by_role("button", name="Answer").is_enabled, "the questions are answered", PATIENCE_S)
    assert "–" not in page.locator(".compared").last.locator("td").all_inner_texts()
    page.get_by_role("button", name="Chat with it").click()
    until(page, page.locator("#view-chat").is_visible, "the chat is shown")
    until(page, lambda: "first" in page.locator("#view-chat").inner_text(), "the adapter is chosen")
    page.locator("#tab-training").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("Teach a model").wait_for()


def test_a_run_is_stopped_and_goes_on(open_page):
    page = open_page("#training")
    page.set_default_timeout(1000 * PATIENCE_S)
    train(page, "second", 1000)  # longer than the test waits
    page.locator(".loss-curve .curve.s0").wait_for(state="attached")
    page.get_by_role("button", name="Stop").click()
    until(page, lambda: state(page) == "Stopped", "the run is stopped", PATIENCE_S)
    page.reload()  # another visitor finds it
    page.get_by_role("button", name="Go on").click()
    until(page, lambda: state(page) == "Training", "the run goes on", PATIENCE_S)
    page.get_by_role("button", name="Stop").click()
    until(page, lambda: state(page) == "Stopped", "the run is stopped again", PATIENCE_S)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("Teach a model").wait_for()


def register(page, version):
    page.get_by_role("button", name="Register").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("support")
    dialog.get_by_label("Version").fill(version)
    dialog.get_by_role("button", name="Register").click()
    page.get_by_role("rowheader", name=version).wait_for()


def in_production(page):
    return page.get_by_role("row").filter(has_text="in production").get_by_role("rowheader").all_inner_texts()


def test_versions_are_registered_promoted_and_rolled_back(open_page, server):
    page = open_page("#training", excused=("400",))
    page.set_default_timeout(1000 * PATIENCE_S)
    train(page, "good", 3)
    until(page, lambda: state(page) == "Done", "the run is done", PATIENCE_S)
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text("On held-out rows").wait_for()
    register(page, "1.0.0")
    assert "loss" in page.get_by_role("row", name="1.0.0").inner_text()
    train(page, "better", 6)
    until(
        page,
        lambda: page.locator(".run h2").first.inner_text() == "better" and state(page) == "Done",
        "done",
        PATIENCE_S,
    )
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text("On held-out rows").wait_for()
    register(page, "1.1.0")
    for version in ("1.0.0", "1.1.0"):
        page.get_by_role("button", name=f"Promote {version}").click()
        until(page, lambda version=version: in_production(page) == [version], f"{version} is promoted")
    page.get_by_role("button", name="Roll back").click()
    until(page, lambda: in_production(page) == ["1.0.0"], "the version before is back")
    found = httpx.get(f"{server.url}/v1/registry/support").json()
    assert found["aliases"]["production"] == "1.0.0"
    page.get_by_role("button", name="Register").click()
    page.get_by_role("dialog").get_by_label("Version").fill("one")
    page.get_by_role("dialog").get_by_role("button", name="Register").click()
    until(page, lambda: "one" in page.locator(".toasts").inner_text(), "it is said that one is no version")


def test_rows_that_are_wrong_are_named(open_page):
    page = open_page("#training", excused=("409",))
    rows = page.get_by_label("Rows", exact=True)
    start = page.get_by_role("button", name="Train", exact=True)
    for text, words in (
        ("", "0 rows"),
        (ROWS.splitlines()[0], "1 row"),
        ('{"text": "a"}\n{"text": ', "Line 2 is not JSON"),
        ('{"text": "a"}\n{"words": "b"}', "Row 2 needs"),
        ("[1, 2]", "Row 1 must be an object"),
        ('{"chosen": "a", "rejected": "b"}\n' * 2, "2 rows, preferences"),
    ):
        rows.fill(text)
        until(page, lambda words=words: words in page.locator(".training-form .hint").first.inner_text(), words)
        assert start.is_disabled() == ("preferences" not in words)
    train(page, "third", 1)
    shown = page.locator(".run h2").first
    until(page, lambda: shown.inner_text() == "third" and state(page) == "Done", "the run is done", PATIENCE_S)
    train(page, "third", 1)
    page.get_by_text("there is a run 'third'").wait_for()
