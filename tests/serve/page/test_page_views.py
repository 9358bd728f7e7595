"""The embeddings tab shows what the vectors say, the live tab what the server does, and the key is asked for once."""

import httpx
import numpy as np
import pytest
from driving import send, settings, start_long_reply, until

TEXTS = ["red apple", "green apple", "blue sky", "a ship at sea", "the sea at night"]


def embed(page, texts: list[str]) -> None:
    page.fill("#texts", "\n".join(texts))
    page.get_by_role("button", name="Embed", exact=True).click()
    page.wait_for_selector("canvas")


def cosines(url: str, texts: list[str]) -> np.ndarray:
    answer = httpx.post(f"{url}/v1/embeddings", json={"model": "bert", "input": texts}, timeout=60).json()
    vectors = np.array([row["embedding"] for row in answer["data"]])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def test_the_heat_map_shows_the_cosines(open_page, server):
    page = open_page("#embeddings")
    embed(page, [*TEXTS, "", "  "])
    expected = cosines(server.url, TEXTS)
    page.get_by_text("As a table").click()
    rows = page.locator(".as-table tbody tr").all()
    shown = [[float(cell) for cell in row.locator("td").all_inner_texts()] for row in rows]
    np.testing.assert_allclose(shown, expected, atol=0.00501)
    page.locator("canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):  # the first arrow goes to the first cell
        page.keyboard.press(key)
    readout = page.locator("#heat-readout").inner_text()
    assert readout == f"{expected[2, 1]:.3f} 3. {TEXTS[2]} and 2. {TEXTS[1]}"


def test_the_likest_pair_has_the_strongest_colour(open_page, server):
    page = open_page("#embeddings", color_scheme="light", excused=("willReadFrequently",))
    embed(page, TEXTS)
    expected = cosines(server.url, TEXTS)
    colours = page.evaluate(
        """n => {
          const canvas = document.querySelector('canvas'), context = canvas.getContext('2d');
          const ratio = canvas.width / canvas.clientWidth;
          const [left, cell, row] = ['left', 'cell', 'row'].map(name => Number(canvas.dataset[name]));
          const spot = (start, size, i) => (start + i * size + 3) * ratio;
          const at = (i, j) => context.getImageData(spot(left, cell, j), spot(20, row, i), 1, 1).data;
          return [...Array(n).keys()].map(i => [...Array(n).keys()].map(j => at(i, j)[0]));
        }""",
        len(TEXTS),
    )
    darkness = 255 - np.array(colours)
    pairs = np.triu_indices(len(TEXTS), 1)
    assert np.unravel_index(darkness[0].argmax(), (5,)) == (0,)
    assert darkness[pairs].argmax() == expected[pairs].argmax()
    assert darkness[pairs].argmin() == expected[pairs].argmin()


def test_three_hundred_texts_fit_into_the_window(open_page):
    page = open_page("#embeddings", width=700)
    embed(page, [f"text number {i}" for i in range(300)])
    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 1, "y": box["height"] / 2})
    assert page.locator("#heat-readout").inner_text().endswith(" and 300. text number 299")
    canvas.hover(position={"x": box["width"] / 2, "y": box["height"] - 1})
    assert " 300. text number 299 and " in page.locator("#heat-readout").inner_text()


def test_search_ranks_the_texts(open_page, server):
    page = open_page("#embeddings")
    embed(page, TEXTS)
    page.get_by_label("Search the texts by meaning").fill(TEXTS[3])
    page.keyboard.press("Enter")
    page.wait_for_selector(".ranking li")
    order = np.argsort(-cosines(server.url, TEXTS)[3], kind="stable")
    assert page.locator(".rank-words").all_inner_texts() == [TEXTS[i] for i in order]
    assert page.locator(".ranking .numbers").first.inner_text() == "1.000"
    assert page.locator(".query-mark").count() == 1


def test_the_map_has_every_text_and_its_neighbours(open_page, server):
    page = open_page("#embeddings")
    embed(page, TEXTS)
    points = page.locator(".point")
    assert points.count() == len(TEXTS)
    points.first.focus()
    page.keyboard.press("ArrowRight")
    nearest = cosines(server.url, TEXTS)[1].argsort()[-2]
    assert page.locator(".map .readout").inner_text().startswith(f"{TEXTS[1]} nearest: {TEXTS[nearest]}")


def test_embed_is_offered_for_two_to_300_texts(open_page):
    page = open_page("#embeddings")
    button = page.get_by_role("button", name="Embed", exact=True)
    for count, able in ((0, False), (1, False), (2, True), (300, True), (301, False)):
        page.fill("#texts", "\n".join(["x"] * count))
        assert button.is_enabled() == able


def test_texts_without_difference_have_a_map_too(open_page):
    page = open_page("#embeddings")
    embed(page, ["same", "same"])
    assert page.locator(".point").count() == 2
    assert page.locator(".card", has_text="Map").locator(".hint").inner_text() == "100 % of the variance"


def test_the_live_tab_shows_a_request_while_it_runs(open_page):
    page = open_page()
    start_long_reply(page)
    page.keyboard.press("Alt+3")
    row = page.locator("#view-live .wide", has_text="Output").first.locator("tbody tr")
    row.wait_for()
    assert row.locator("td").all_inner_texts()[1:4] == ["tiny", "generate", "running"]
    until(page, lambda: page.locator(".chart").first.locator(".curve").count(), "the chart has a line")
    page.keyboard.press("Alt+1")
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+3")
    page.get_by_text("No request is running").wait_for()


def test_the_charts_go_on_and_can_be_paused(open_page):
    page = open_page("#live")
    points = "document.querySelector('.chart .curve')?.getAttribute('d').split('L').length ?? 0"
    until(page, lambda: page.evaluate(points) >= 3, "three samples are drawn")
    labels = page.locator(".chart svg").evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
    titles = ("Tokens per second", "Requests", "KV cache pages", "Memory")
    assert all(label.startswith(f"{title} in the last two minutes: ") for label, title in zip(labels, titles))
    assert page.locator(".chart-now").last.inner_text().endswith("B")
    page.get_by_role("button", name="Pause").click()
    with pytest.raises(Exception, match="Timeout"), page.expect_request("**/weft/live", timeout=1500):
        pass
    page.get_by_role("button", name="Resume").click()
    with page.expect_request("**/weft/live"):
        pass


def test_nothing_is_asked_for_while_the_live_tab_is_not_shown(open_page):
    page = open_page("#live")
    with page.expect_request("**/weft/live"):
        pass
    page.keyboard.press("Alt+1")
    page.wait_for_selector("#view-live", state="hidden")
    with pytest.raises(Exception, match="Timeout"), page.expect_request("**/weft/live", timeout=1500):
        pass


def test_the_models_that_are_loaded_say_so(open_page):
    page = open_page()
    settings(page, max_tokens=2)
    send(page, "hello")
    page.keyboard.press("Alt+3")
    page.locator("tr", has_text="tiny").get_by_text("ready").wait_for()


def signed_in(open_page, server):
    """The page of a server with a key, which was typed at the door."""
    page = open_page(url=server.url, excused=("401",), ready="#key")
    page.get_by_label("Key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    page.wait_for_selector('.link-state[data-state="up"]', state="attached")
    return page


def test_a_key_is_asked_for_at_the_door_and_kept_for_the_tab_only(open_page, serve):
    locked = serve(keys=("secret",))
    page = open_page(url=locked.url, excused=("401",), ready="#key", width=320)
    assert page.evaluate("document.activeElement.id") == "key"
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("not valid for this server").wait_for()
    page.get_by_label("Key", exact=True).fill(" secret ")
    page.get_by_role("button", name="Sign in").click()
    until(page, lambda: page.locator(".model-choice").input_value() == "tiny", "the models are known")
    page.set_viewport_size({"width": 1360, "height": 860})
    settings(page, max_tokens=3)
    send(page, "hello")
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie").count("secret") == 0
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert page.get_by_role("dialog").count() == 0
    other = page.context.new_page()  # it is let in, and has no key to ask with
    other.goto(locked.url)
    other.get_by_role("dialog", name="A key is needed").wait_for()
    other.get_by_label("Key", exact=True).fill("wrong")
    other.keyboard.press("Enter")
    other.get_by_role("dialog").get_by_text("refused that key").wait_for()
    other.get_by_label("Key", exact=True).fill("secret")
    other.keyboard.press("Enter")
    until(other, lambda: other.locator(".model-choice").input_value() == "tiny", "the models are known")


def test_without_the_key_the_page_says_what_is_missing(open_page, serve):
    page = signed_in(open_page, serve(keys=("secret",)))
    page.evaluate("sessionStorage.clear()")
    page.reload()
    page.get_by_role("dialog", name="A key is needed").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+3")
    page.get_by_role("dialog", name="A key is needed").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("alert").get_by_text("API key is required").wait_for()
    # The figures are asked for again and again; the dialog is not.
    with page.expect_response("**/weft/live"):
        pass
    assert page.get_by_role("dialog", name="A key is needed").count() == 0


def test_a_server_that_is_gone_is_said_to_be(open_page, serve):
    ended = serve()
    page = open_page(url=ended.url, excused=("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"))
    ended.__exit__()
    send(page, "hello")
    assert "does not answer" in page.get_by_role("alert").inner_text()
    assert page.locator(".link-state").inner_text() == "No answer"
