"""The models tab shows and moves models; settings show the values that the server uses."""

import json
from typing import Any

import httpx
import pytest
from driving import send, settings, until

from weft.serve import ModelSpec

PULLED = [
    {"status": "pulling manifest"},
    {"status": "pulling a", "digest": "sha256:a", "total": 4_000_000, "completed": 1_000_000},
    {"status": "pulling a", "digest": "sha256:a", "total": 4_000_000, "completed": 4_000_000},
    {"status": "success"},
]


def card(page: Any, name: str) -> Any:
    return page.locator(f"[data-model={name}]")


def test_cards_say_what_a_model_is_and_load_and_unload_it(serve, open_page):
    own = serve()
    page = open_page("#models", url=own.url)
    tiny = card(page, "tiny")
    live = {model["name"]: model for model in httpx.get(f"{own.url}/weft/live").json()["models"]}
    shown = dict(zip(tiny.locator("dt").all_inner_texts(), tiny.locator("dd").all_inner_texts()))
    assert shown["Context"] == f"{live['tiny']['context']:,} tokens"
    assert shown["Memory when loaded"].split()[0] == f"{live['tiny']['bytes'] / 1e6:.1f}"
    assert tiny.locator(".badge").inner_text() == "Not loaded" and "Chat" in tiny.inner_text()
    assert "Embeddings" in card(page, "bert").inner_text()
    tiny.get_by_role("button", name="Load").click()
    until(page, lambda: tiny.locator(".badge").inner_text() == "Loaded", "the model is loaded")
    assert own.app.serving.models.entries["tiny"].runner is not None
    tiny.get_by_role("button", name="Unload").click()
    until(page, lambda: tiny.locator(".badge").inner_text() == "Not loaded", "the model is unloaded")
    assert own.app.serving.models.entries["tiny"].runner is None
    card(page, "plain").get_by_role("button", name="Chat").click()
    assert page.locator(".model-choice").input_value() == "plain" and page.locator("#composer").is_visible()


def test_a_download_shows_how_far_it_is(serve, open_page):
    """The lines are made up here: tests have no network."""
    own = serve(allow_pull=True)
    page = open_page("#models", url=own.url, excused=("502",))
    body = "".join(json.dumps(line) + "\n" for line in PULLED)
    page.route("**/api/pull", lambda route: route.fulfill(body=body, content_type="application/x-ndjson"))
    page.get_by_label("Download a model").fill("org/some-model")
    page.get_by_role("button", name="Download").click()
    page.get_by_text("Downloaded. It is in the list above.").wait_for()
    assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "100"
    page.unroute("**/api/pull")
    page.route("**/api/pull", lambda route: route.fulfill(status=502, json={"error": "org/none does not exist"}))
    page.get_by_label("Download a model").fill("org/none")
    page.keyboard.press("Enter")
    page.get_by_text("org/none does not exist").wait_for()


def test_progress_is_the_sum_of_all_files(open_page):
    page = open_page()
    sums = page.evaluate(
        """async (lines) => {
          const { takeProgress } = await import('/page/models/download.js');
          const files = new Map();
          return lines.map((line) => takeProgress(files, line));
        }""",
        [*PULLED[:2], {"digest": "sha256:b", "total": 6_000_000}, PULLED[2]],
    )
    assert [(each["completed"], each["total"]) for each in sums] == [
        (0, 0),
        (1_000_000, 4_000_000),
        (1_000_000, 10_000_000),
        (4_000_000, 10_000_000),
    ]


def test_without_downloads_the_page_says_how_to_get_models(open_page):
    page = open_page("#models")
    page.get_by_text("weft serve --allow-pull").wait_for()
    assert page.get_by_label("Download a model").is_hidden()


def test_unset_fields_show_the_values_that_the_server_uses(open_page, server):
    page = open_page()
    settings(page, max_tokens=2)
    send(page, "hello")
    page.get_by_role("button", name="Reset", exact=True).click()
    used = {"temperature": 1, **server.app.serving.models.entries["tiny"].runner.sampling_defaults}
    live = httpx.get(f"{server.url}/weft/live").json()
    (tiny,) = (model for model in live["models"] if model["name"] == "tiny")
    assert {"temperature": 1, **tiny["sampling"]} == used
    field = page.locator("[data-setting=temperature]")
    assert field.get_attribute("placeholder") == f"{used['temperature']:g}"
    assert float(page.get_by_label("Temperature, slider").input_value()) == used["temperature"]
    most = min(live["default_tokens"], tiny["context"])
    assert page.locator("[data-setting=max_tokens]").get_attribute("placeholder") == str(most)
    placeholders = page.locator("[data-setting]").evaluate_all("all => all.map(field => field.placeholder ?? '')")
    assert "auto" not in placeholders


def test_two_of_the_nine_fields_are_open(open_page):
    page = open_page()
    fields = page.locator("input[type=number][data-setting]")
    assert fields.count() == 9
    shown = [field.get_attribute("data-setting") for field in fields.all() if field.is_visible()]
    assert shown == ["temperature", "max_tokens"]
    page.get_by_text("More sampling settings").click()
    assert all(field.is_visible() for field in fields.all())
    settings(page, top_k=5)
    assert "1 set" in page.locator(".more summary").inner_text()


def test_the_values_in_use_are_those_of_the_model_that_is_chosen(open_page):
    """The list is made up here: two models with other defaults."""
    page = open_page()
    base = {"state": "ready", "kind": "generate", "bytes": 1, "context": 2048, "adapters": []}
    one = {**base, "name": "one", "sampling": {"temperature": 0.2, "top_p": 0.9}, "sampling_source": "the catalogue"}
    two = {**base, "name": "two", "sampling": {"temperature": 0.6, "top_k": 20}, "sampling_source": "a file"}
    live = {"models": [one, two], "default_tokens": 4096}
    page.route("**/weft/live", lambda route: route.fulfill(json=live))
    page.route("**/apply-template", lambda route: route.fulfill(json={"prompt": "", "tokens": 5}))
    page.reload()
    field = page.locator("[data-setting=temperature]")
    until(page, lambda: field.get_attribute("placeholder") == "0.2", "the defaults of the first model")
    page.get_by_text("They come from the catalogue.").wait_for()
    page.locator(".model-choice").select_option("two")
    assert field.get_attribute("placeholder") == "0.6"
    assert page.locator("[data-setting=top_k]").get_attribute("placeholder") == "20"
    assert page.locator("[data-setting=max_tokens]").get_attribute("placeholder") == "2048"


@pytest.mark.parametrize("address, view", [("", "embeddings"), ("#live", "live")])
def test_a_server_that_only_embeds_opens_on_embeddings(serve, open_page, specs: tuple[ModelSpec, ...], address, view):
    own = serve(models=tuple(spec for spec in specs if spec.name == "bert"))
    page = open_page(address, url=own.url)
    until(page, lambda: page.locator(f"#view-{view}").is_visible(), f"{view} is shown")


def test_files_are_searched_in_the_embeddings_tab(open_page, tmp_path):
    page = open_page("#embeddings")
    folder = tmp_path / "notes"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("hidden")
    (folder / "looms.md").write_text("A loom holds the warp.")
    (folder / "bread.txt").write_text("Knead the dough well.")
    (folder / "photo.png").write_bytes(b"\x89PNG")
    page.locator("input[aria-label=Folder]").set_input_files(folder)
    page.locator(".toast", has_text="2 passages from 2 files. photo.png is an image").wait_for()
    page.get_by_role("button", name="Embed", exact=True).click()
    page.get_by_label("Search the texts by meaning").fill("weaving")
    page.keyboard.press("Enter")
    page.wait_for_selector(".ranking li")
    assert sorted(page.locator(".rank-origin").all_inner_texts()) == ["notes/bread.txt", "notes/looms.md"]


def test_groups_of_texts_have_colours_and_labels_are_whole(open_page):
    """Vectors are made up here: two groups that are far apart."""
    page = open_page("#embeddings")
    texts = [f"animal number {i} sleeps in the warm sun all day" for i in range(4)] + [
        f"bread number {i}" for i in range(4)
    ]
    rows = [[1, 0.1 * i, 0] for i in range(4)] + [[0, 0.1 * i, 1] for i in range(4)]
    data = [{"index": i, "embedding": row} for i, row in enumerate(rows)]
    page.route("**/v1/embeddings", lambda route: route.fulfill(json={"data": data}))
    page.fill("#texts", "\n".join(texts))
    page.get_by_role("button", name="Embed", exact=True).click()
    page.wait_for_selector(".point")
    fills = page.locator(".spot").evaluate_all("all => all.map(spot => getComputedStyle(spot).fill)")
    assert len(set(fills[:4])) == len(set(fills[4:])) == 1 and fills[0] != fills[4]
    assert page.locator(".groups-list li").count() == 2
    labels = page.locator(".map-label").evaluate_all(
        "all => all.map(label => [label.textContent, label.getBBox().x, label.getBBox().x + label.getBBox().width])"
    )
    width = page.locator(".map-box svg").evaluate("svg => svg.clientWidth")
    assert labels and all(left >= -1 and right <= width + 1 for _, left, right in labels)
    assert any(text == texts[0].replace(" ", "") or "all day" in text for text, _, _ in labels)


def test_a_conversation_names_the_model_that_loads(serve, open_page):
    own = serve()
    page = open_page(url=own.url)
    settings(page, max_tokens=3)
    assert "not loaded" in page.locator(".model-choice").inner_text()
    send(page, "hello")
    until(page, lambda: "not loaded" not in page.locator(".model-choice option").first.inner_text(), "it is loaded")
