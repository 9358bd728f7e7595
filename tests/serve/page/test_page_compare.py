"""The compare tab: two models answer beside each other, where they part is marked, perplexities are measured."""

import httpx
import pytest
from driving import until
from tiny_chat import CONFIG, write_chat_model

PATIENCE_S = 120
PROMPT, TEXT = "Hello, loom!", "The weft is drawn through the warp, over one thread and under the next."


@pytest.fixture(scope="session")
def specs(tmp_path_factory):
    from weft.serve import ModelSpec

    folder = tmp_path_factory.mktemp("page")
    first = write_chat_model(folder / "first.gguf")
    second = write_chat_model(folder / "second.gguf", model={**CONFIG, "rope_theta": 50.0})
    options = {"threads": 1, "context": 4096, "kv_tokens": 8192}
    return tuple(ModelSpec(path.stem, str(path), options) for path in (first, second))


@pytest.fixture(scope="session")
def server(specs):  # its own: that of the other pages has other models
    from weft.serve import BackgroundServer, Settings

    with BackgroundServer(Settings(models=specs, port=0)) as running:
        yield running


def answered(page, tokens):
    page.get_by_label("Prompt", exact=True).fill(PROMPT)
    page.get_by_label("Tokens", exact=True).fill(str(tokens))
    page.get_by_role("button", name="Answer").click()
    until(page, lambda: page.locator(".compare-said").inner_text(), "both have answered", PATIENCE_S)
    return page.locator(".compare-said").inner_text()


def tokens_of(server, model, count):
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": count}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "logprobs": True}, timeout=PATIENCE_S)
    return [one["token"] for one in reply.raise_for_status().json()["choices"][0]["logprobs"]["content"]]


def test_answers_are_marked_where_they_part(open_page, server):
    page = open_page("#compare")
    page.set_default_timeout(1000 * PATIENCE_S)
    first, second = (tokens_of(server, name, 24) for name in ("first", "second"))
    same = next(at for at, (a, b) in enumerate(zip(first, second)) if a != b)  # they do part
    wanted = "The first tokens differ" if same == 0 else f"The same for {same} tokens"
    assert answered(page, 24).startswith(wanted)
    for letter, tokens in (("A", first), ("B", second)):
        side = page.get_by_role("region", name=f"Model {letter}")
        assert side.locator(".compare-answer").text_content() == "".join(tokens)
        assert side.locator("mark").text_content() == "".join(tokens[same:])
        figures = dict(zip(side.locator("dt").all_inner_texts(), side.locator("dd").all_inner_texts()))
        assert figures["Size"].endswith("kB") and float(figures["Tokens/s"]) > 0, figures


def test_a_model_beside_itself_is_the_same_also_at_once(open_page):
    page = open_page("#compare")
    page.set_default_timeout(1000 * PATIENCE_S)
    page.get_by_role("combobox", name="Model B").select_option("first")
    page.get_by_label("One after the other").uncheck()
    assert answered(page, 16) == "The same 16 tokens."
    assert page.locator(".compare-answer mark").count() == 0
    page.get_by_role("combobox", name="Model B").select_option("second")  # what it said is no longer shown
    assert page.locator(".compare-said").inner_text() == ""
    assert page.get_by_role("region", name="Model B").locator(".compare-answer").text_content() == ""


def test_the_perplexity_is_that_of_weft_eval_ppl(open_page, specs):
    from weft.measure import perplexity_of

    page = open_page("#compare")
    page.set_default_timeout(1000 * PATIENCE_S)
    assert page.get_by_role("button", name="Measure").is_disabled()
    page.get_by_label("Text for the perplexity").fill(TEXT)
    page.get_by_role("button", name="Measure").click()
    cells = page.locator(".compare-figures div:last-child dd")
    until(page, lambda: not {"–", "…"} & set(cells.all_inner_texts()), "both are measured", PATIENCE_S)
    wanted = [perplexity_of(spec.source, TEXT).perplexity for spec in specs]
    assert [float(cell) for cell in cells.all_inner_texts()] == pytest.approx(wanted, rel=1e-4)
    assert wanted[0] != pytest.approx(wanted[1], rel=1e-3)


def test_it_can_be_stopped(open_page):
    page = open_page("#compare")
    page.set_default_timeout(1000 * PATIENCE_S)
    page.get_by_label("Tokens", exact=True).fill("3500")
    page.get_by_role("button", name="Answer").click()
    until(page, lambda: page.locator(".compare-answer").first.text_content(), "the first has begun", PATIENCE_S)
    page.get_by_role("button", name="Stop").click()
    until(page, page.get_by_role("button", name="Answer").is_enabled, "it is stopped", PATIENCE_S)
    assert page.locator(".compare-answer").last.text_content() == ""


def test_a_refusal_is_shown(open_page):
    page = open_page("#compare", excused=("400",))
    page.set_default_timeout(1000 * PATIENCE_S)
    page.get_by_label("Prompt", exact=True).fill("x" * 6000)
    page.get_by_role("button", name="Answer").click()
    page.locator(".compare-side .notice").last.wait_for()
    for said in page.locator(".compare-side .notice").all_inner_texts():
        assert "6019 tokens" in said
