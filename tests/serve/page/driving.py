"""What tests do on the page again and again."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 20
# The model may not end before so many characters are there.
LONG = '{"type": "string", "minLength": 30000}'


def until(page: Any, holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something holds. Playwright's own wait evaluates strings in the page, which its policy forbids."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still not so: {what}"
        page.wait_for_timeout(20)


def text_of(page: Any) -> str:
    """The reply that was last, as it stands on the page."""
    found: str = page.evaluate("[...document.querySelectorAll('.message.assistant .prose')].at(-1)?.textContent ?? ''")
    return found


def settings(page: Any, **values: Any) -> None:
    """Fill number fields of the settings and turn switches, by the names of the API."""
    page.evaluate("for (const more of document.querySelectorAll('.more')) more.open = true")
    for name, value in values.items():
        field = page.locator(f"[data-setting={name}]")
        if isinstance(value, bool):
            field.set_checked(value)
        else:
            field.fill(str(value))


def send(page: Any, text: str, *, wait: bool = True) -> None:
    """Send a message, and wait for the whole reply."""
    page.fill("#composer", text)
    page.get_by_label("Send", exact=True).click()
    if wait:
        finished(page)


def finished(page: Any) -> None:
    page.wait_for_selector(".message.assistant:last-child[aria-busy=false] [aria-label=Regenerate]")


def kept(page: Any) -> dict[str, Any]:
    """The conversation that is open, as the browser keeps it."""
    found: dict[str, Any] = page.evaluate("JSON.parse(localStorage['weft.chat.' + localStorage['weft.last']])")
    return found


def last_reply(page: Any) -> dict[str, Any]:
    message = kept(page)["messages"][-1]
    reply: dict[str, Any] = message["replies"][message["shown"]]
    return reply


def use_schema(page: Any, schema: str) -> None:
    settings(page, json=True)
    page.get_by_label("JSON schema").fill(schema)


def start_long_reply(page: Any) -> None:
    """Send a message whose reply takes seconds, and wait until some of it is there."""
    use_schema(page, LONG)
    settings(page, max_tokens=39000)
    send(page, "Tell me everything", wait=False)
    until(page, lambda: len(text_of(page)) > 20, "a reply begins")
