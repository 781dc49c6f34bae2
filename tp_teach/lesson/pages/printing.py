"""Decks in headless Chromium, driven by Playwright: it prints them as PDF."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


@contextmanager
def opened() -> Iterator[Page]:
    """A browser's page as large as a slide. Raises RuntimeError when Playwright or Chromium is missing."""
    browser_path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser_path is None:
        raise RuntimeError(
            "no Chromium or Chrome is installed, which shows the slides; on Debian: apt-get install chromium"
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise RuntimeError("Playwright is missing, which drives the browser; pip install playwright") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=[*QUIET, "--disable-sync"])
        try:
            yield browser.new_page(viewport={"width": 1280, "height": 720})
        finally:
            browser.close()


def pdfs(decks: list[Path]) -> Iterator[Path]:
    """Print each deck to a PDF beside it, one page a slide with all its steps shown.

    Raises RuntimeError when Playwright or Chromium is missing.
    """
    with opened() as page:
        for deck in decks:
            page.goto(deck.resolve().as_uri() + "?print-pdf")
            page.wait_for_function("document.querySelectorAll('.pdf-page').length > 0 && Reveal.isReady()")
            page.evaluate("document.fonts.ready.then(() => Promise.all([...document.images].map(i => i.decode())))")
            target = deck.with_suffix(".pdf")
            page.pdf(path=str(target), width="1280px", height="720px", print_background=True)
            yield target
