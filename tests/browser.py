"""Debian's Chromium, for the tests that look at pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@contextmanager
def open_chromium(untested: str, *more: str) -> Iterator[Any]:
    """A browser, with flags of its own; the test is skipped where there is none, and says what is `untested` then.

    While one is open this thread has a running event loop, which other tests must not find: fixtures of modules, not of
    sessions.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason=f"playwright is not installed; {untested}")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip(f"Chromium is not installed (Debian: apt-get install chromium); {untested}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *more])
        yield browser
        browser.close()
