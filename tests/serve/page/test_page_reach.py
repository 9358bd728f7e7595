"""The page works for everybody: on a telephone, with the keyboard alone, in the dark, and with a screen reader."""

import pytest
from driving import finished, last_reply, send, settings, until

VIEWS = ("chat", "embeddings", "live", "models", "training", "compare")
# What sticks out of the window sideways, other than what scrolls in a box of its own.
TOO_WIDE = """() => {
  const boxed = (element) => element.closest('.table-box, .tabs, .drawer, pre, canvas, svg, .hidden-text, textarea');
  return [...document.querySelectorAll('body *')].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width && !boxed(element) && (box.right > innerWidth + 0.5 || box.left < -0.5)
      && getComputedStyle(element).clipPath === 'none';
  }).map((element) => `${element.tagName}.${element.className}`);
}"""
MARKDOWN = (
    "# Title\n\n"
    + "| a wide head | another one | a third |\n|---|---|---|\n| "
    + "cell " * 30
    + "| x | y |\n\n```\n"
    + "x" * 200
)
FOCUS = """() => {
  const element = document.activeElement, style = getComputedStyle(element);
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const box = element.closest('.composer-box, .point');
  const other = box && (getComputedStyle(box).boxShadow !== 'none' || box.querySelector('.reach'));
  return [element.id || element.getAttribute('aria-label') || element.textContent.trim(), Boolean(ring || other)];
}"""


@pytest.mark.parametrize("width", [320, 360, 768])
def test_no_view_scrolls_sideways(open_page, width):
    page = open_page(width=width, height=700, has_touch=True, is_mobile=True)
    page.evaluate(
        """text => {
          const reply = { content: text, model: 'tiny' };
          const user = { role: 'user', content: 'w'.repeat(400) };
          const messages = [user, { role: 'assistant', replies: [reply], shown: 0 }];
          localStorage['weft.chat.a-conversation'] = JSON.stringify({ id: 'a-conversation', messages });
          localStorage['weft.last'] = 'a-conversation';
        }""",
        MARKDOWN,
    )
    page.reload()
    page.wait_for_selector(".prose table")
    for view in VIEWS:
        page.locator(f"#tab-{view}").tap()
        if view == "embeddings":
            page.get_by_role("button", name="Example").tap()
            page.get_by_role("button", name="Embed", exact=True).tap()
            page.wait_for_selector("canvas")
        elif view == "live":
            page.wait_for_selector(".curve", state="attached")  # a flat line has no height
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(TOO_WIDE) == [], view


def test_side_panels_are_drawers_on_a_telephone(open_page):
    page = open_page(width=360, height=700, has_touch=True, is_mobile=True)
    opener = page.locator("button[aria-controls=settings]")
    drawer = page.get_by_role("dialog", name="Settings")
    assert page.locator("#settings").is_hidden()
    opener.tap()
    drawer.wait_for()
    settings(page, max_tokens=4)
    assert page.evaluate("document.querySelector('.chat').inert && document.querySelector('.bar').inert")
    page.keyboard.press("Escape")
    until(page, page.locator("#settings").is_hidden, "the drawer is shut")
    assert page.evaluate("document.activeElement.getAttribute('aria-controls')") == "settings"
    assert not page.evaluate("document.querySelector('.chat').inert")
    send(page, "hello")
    page.locator("button[aria-controls=conversations]").tap()
    page.locator(".scrim:visible").tap(position={"x": 340, "y": 400})
    until(page, page.locator("#conversations").is_hidden, "the drawer is shut")


def test_a_whole_conversation_with_the_keyboard_alone(open_page):
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    finished(page)
    first = last_reply(page)["content"]
    page.keyboard.press("Alt+r")
    page.wait_for_selector("text=2 / 2")
    finished(page)
    assert page.locator(".bubble").inner_text() == "hello\nthere"
    assert last_reply(page)["content"] != first
    page.keyboard.press("Alt+s")
    assert page.locator("#settings").is_hidden()
    page.keyboard.press("Alt+n")
    assert page.locator(".message").count() == 0
    for digit, view in enumerate(VIEWS, 1):
        page.keyboard.press(f"Alt+{digit}")
        assert page.locator(f"#view-{view}").is_visible()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "composer"
    page.keyboard.press("Alt+6")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-chat"
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "tab-chat"


@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_everything_and_the_focus_is_seen(open_page, view):
    page = open_page(f"#{view}")
    if view == "embeddings":
        page.get_by_role("button", name="Example").click()
        page.get_by_role("button", name="Embed", exact=True).click()
        page.wait_for_selector(".point")
    page.locator(".skip").focus()
    found = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break  # once around
        name, seen = page.evaluate(FOCUS)
        assert seen, f"nothing shows that {name} has the focus"
        found.append(name)
    assert found[0] == f"tab-{view}"
    wanted = {
        "chat": {"system", "composer", "new-conversation", "Model", "Settings (Alt+S)"},
        "embeddings": {"embedder", "texts", "Search the texts by meaning"},
        "live": {"Pause", "Models"},
        "models": {"Load", "Chat"},
        "training": set(),  # this server does not train; tests/serve/page/test_page_training.py has one that does
        "compare": {"compare-prompt", "compare-tokens", "compare-turns", "compare-text", "Answer"},
    }[view]
    found = ["Load" if name == "Unload" else name for name in found]  # other tests may have loaded every model
    assert wanted <= set(found), wanted - set(found)


def test_the_page_follows_the_system_and_the_switch(open_page):
    page = open_page(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert dark != light
    switch = page.get_by_label("Theme:")
    switch.click()
    assert switch.get_attribute("aria-label") == "Theme: Light"
    switch.click()
    assert page.evaluate(background) == dark
    page.reload()
    page.wait_for_selector(".messages")
    assert page.evaluate(background) == dark
    page.get_by_label("Theme: Dark").click()
    assert page.evaluate(background) == light


def test_nothing_moves_for_those_who_ask_for_that(open_page):
    page = open_page(reduced_motion="reduce")
    slowest = """() => Math.max(...[...document.querySelectorAll('*')].flatMap((element) => {
      const style = getComputedStyle(element);
      return [style.transitionDuration, style.animationDuration].flatMap((text) => text.split(', ')).map(parseFloat);
    }))"""
    assert page.evaluate(slowest) < 0.001
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(slowest) > 0.05


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_checker_of_accessibility_finds_nothing(open_page, scheme):
    package = pytest.importorskip("axe_core_python.sync_playwright", reason="axe-core-python is not installed")
    page = open_page(color_scheme=scheme, reduced_motion="reduce")
    settings(page, temperature=0, max_tokens=12, probabilities=True)
    send(page, "hello")
    axe, found = package.Axe(), []
    for view in VIEWS:
        page.locator(f"#tab-{view}").click()
        if view == "chat":
            page.get_by_label("Token probabilities", exact=True).last.click()
            page.locator(".token-text .token").first.focus()
        elif view == "embeddings":
            page.get_by_role("button", name="Example").click()
            page.get_by_role("button", name="Embed", exact=True).click()
            page.wait_for_selector(".point")
        elif view == "live":
            page.wait_for_selector(".curve", state="attached")  # a flat line has no height
        for violation in axe.run(page)["violations"]:
            found.append(f"{view}: {violation['id']}: {violation['nodes'][0]['html'][:200]}")
    assert not found


STATES = """() => {
  const reply = (fields) => ({ role: 'assistant', replies: [{ model: 'tiny', ...fields }] });
  const file = { name: 'notes.md', text: 'A loom', note: '' };
  const messages = [
    { role: 'user', content: 'left out' }, reply({ content: 'old' }),
    { role: 'user', content: 'formula', files: [file] }, reply({ content: '\\\\(x^2\\\\) &amp; $$\\\\frac{a}{b}$$' }),
    { role: 'user', content: 'stop' }, reply({ content: 'Half', finish: 'interrupted' }),
    { role: 'user', content: 'full' }, reply({ error: 'too long', full: true }),
    { role: 'user', content: 'call' }, reply({ calls: [['weather', '{}']], finish: 'tool_calls' }),
  ];
  const queue = [{ content: 'waits', files: [] }];
  const one = { id: 'a-conversation', model: 'tiny', dropped: 2, queue, messages, settings: { json: true } };
  localStorage['weft.chat.a-conversation'] = JSON.stringify(one);
  localStorage['weft.last'] = 'a-conversation';
}"""


@pytest.mark.parametrize("width", [1400, 390])
def test_the_checker_finds_nothing_in_any_state_of_a_message(open_page, width):
    """Files, formulas, messages that are left out or wait, notices, and calls to answer; the drawers on a telephone."""
    package = pytest.importorskip("axe_core_python.sync_playwright", reason="axe-core-python is not installed")
    page = open_page(width=width, height=800, reduced_motion="reduce")
    page.evaluate(STATES)
    page.reload()
    page.get_by_label("Result of weather").wait_for()
    page.locator(".more summary").evaluate("summary => { summary.parentElement.open = true; }")
    axe, found = package.Axe(), []
    for opened in ("", *(("conversations", "settings") if width == 390 else ())):
        if opened:
            page.locator(f"button[aria-controls={opened}]").click()
            page.get_by_role("dialog").wait_for()
        for violation in axe.run(page)["violations"]:
            found.append(f"{opened}: {violation['id']}: {violation['nodes'][0]['html'][:200]}")
        page.keyboard.press("Escape")
        until(page, lambda: not page.evaluate("document.querySelector('.chat').inert"), "the drawer is shut")
    assert not found
    assert page.evaluate("document.documentElement.scrollWidth") == width
