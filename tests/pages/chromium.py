"""Decks and pages in a real browser: what it measures, and what it would load."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


@contextmanager
def chromium() -> Iterator[Page]:
    """A page as large as a slide. `page.asked` lists the addresses that were asked for, of which none was answered."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.asked, page.faults = [], []
            page.route("**/*", lambda route: route.continue_() if opened(page, route.request.url) else refuse(route))
            page.on("pageerror", lambda error: page.faults.append(str(error)))
            page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)

            def refuse(route):
                page.asked.append(route.request.url)
                route.abort()

            yield page
        finally:
            browser.close()


def opened(page: Page, address: str) -> bool:
    """Whether this is the file that a test opens itself."""
    return address.split("?")[0].split("#")[0] in page.opening


def open_file(page: Page, path: Path, *beside: str) -> None:
    """Open a file that may load no other than those `beside` it."""
    page.asked.clear()
    page.faults.clear()
    page.opening = [path.with_name(name).resolve().as_uri() for name in (path.name, *beside)]
    page.goto(page.opening[0])


# Everything that is wrong on the slides of a deck, each with all its steps shown. A pixel is for rounding.
WALK = """
async () => {
  const wrong = [];
  await document.fonts.ready;
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  const slides = Reveal.getSlides();
  slides.forEach((slide, number) => {
    Reveal.slide(number);
    slide.querySelectorAll(".fragment").forEach(part => part.classList.add("visible"));
    const where = `slide ${number + 1}, ${slide.querySelector("h1, h2")?.textContent}: `;
    const box = slide.getBoundingClientRect();
    if (Math.abs(box.width - 1280) > 1 || Math.abs(box.height - 720) > 1)
      wrong.push(where + `the slide is ${box.width} by ${box.height}`);
    const body = slide.querySelector(".body")?.getBoundingClientRect() ?? box;
    const name = element => element.tagName.toLowerCase() + "." + element.className + " " +
      element.textContent.trim().slice(0, 40);
    const outside = (inner, outer) => inner.width > 0 && inner.height > 0 && (inner.left < outer.left - 1 ||
      inner.top < outer.top - 1 || inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1);
    for (const element of slide.querySelectorAll("*:not(aside, aside *, pre *, math > * > *)")) {
      const room = element.closest(".body") ? body : box;
      const rect = element.getBoundingClientRect();
      if (outside(rect, room)) wrong.push(where + "over the edge: " + name(element) +
        ` ${[rect.left, rect.top, rect.right, rect.bottom].map(Math.round)}`);
      // The ink of a formula may hang out of its line, and so out of the text; its own box is measured above.
      const hangs = !element.matches("pre, .body, .stack") && element.querySelector("math");
      if (element instanceof HTMLElement && getComputedStyle(element).display !== "inline" && !hangs &&
          (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1))
        wrong.push(where + `more than fits: ${name(element)} ${element.scrollWidth}x${element.scrollHeight}` +
          ` in ${element.clientWidth}x${element.clientHeight}`);
      if (parseFloat(getComputedStyle(element).fontSize) < 14 && !element.closest("math") && element.textContent.trim())
        wrong.push(where + "too small to read: " + name(element));
    }
    for (const pre of slide.querySelectorAll("pre")) {
      const range = document.createRange();
      range.selectNodeContents(pre);
      if (outside(range.getBoundingClientRect(), pre.getBoundingClientRect()))
        wrong.push(where + "code over the edge of its box: " + name(pre));
    }
    const words = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) {
      const parent = words.currentNode.parentElement;
      if (!words.currentNode.textContent.trim() || parent.closest("aside, pre")) continue;
      const range = document.createRange();
      range.selectNodeContents(words.currentNode);
      for (const rect of range.getClientRects())
        if (outside(rect, box)) {
          wrong.push(where + "text over the edge: " + words.currentNode.textContent.trim().slice(0, 40));
          break;
        }
      if (/\\$[^$]*[\\\\^_{][^$]*\\$|\\\\(frac|begin|sum|cdot)/.test(words.currentNode.textContent) &&
          !parent.closest("code")) wrong.push(where + "mathematics as text: " + words.currentNode.textContent);
    }
    const parts = [...slide.querySelectorAll(".body > *, .stack > *, .columns > *")];
    for (const one of parts) for (const other of parts) {
      if (one.contains(other) || other.contains(one)) continue;
      const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
      if (a.top < b.bottom - 1 && b.top < a.bottom - 1 && a.left < b.right - 1 && b.left < a.right - 1)
        wrong.push(where + `one over the other: ${name(one)} and ${name(other)}`);
    }
    for (const image of slide.querySelectorAll("img")) {
      if (!image.naturalWidth) wrong.push(where + "missing image: " + image.alt);
      if (image.getBoundingClientRect().width < 380) wrong.push(where + "small image: " + image.alt);
    }
    for (const formula of slide.querySelectorAll("math"))
      if (formula.getBoundingClientRect().width < 2 || formula.textContent.includes("\\\\"))
        wrong.push(where + "mathematics not rendered: " + formula.textContent);
  });
  return [slides.length, wrong];
}
"""


def walk(page: Page, path: Path) -> tuple[int, list[str]]:
    """The number of slides in a deck, and everything that is wrong on one of them."""
    open_file(page, path)
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    count, wrong = page.evaluate(WALK)
    return count, [*wrong, *page.faults, *(f"asked for {address}" for address in page.asked)]


# What a page of the site looks like: its width, its colours, and what is missing or too faint to read.
LOOK = """
async () => {
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = numbers(colour).map(one => one / 255)
      .map(one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const papers = new Map();
  const behind = element => {
    if (!papers.has(element)) {
      const colour = getComputedStyle(element).backgroundColor;
      papers.set(element, numbers(colour)[3] === 0 ? behind(element.parentElement) : colour);
    }
    return papers.get(element);
  };
  const faint = new Set();
  for (const element of document.querySelectorAll("main *, nav *")) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())) continue;
    if (!element.getClientRects().length || element.closest("math")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    if ((one + 0.05) / (other + 0.05) < 4.5) faint.add(element.tagName + "." + element.className + element.textContent);
  }
  const body = getComputedStyle(document.body);
  return {
    wide: document.documentElement.scrollWidth, paper: body.backgroundColor, ink: body.color, faint: [...faint],
    missing: [...document.images].filter(image => !image.naturalWidth || !image.alt).map(image => image.outerHTML),
    links: [...document.querySelectorAll("a[href]")].map(link => link.href).filter(link => link.startsWith("file:")),
    anchors: [...document.querySelectorAll("[id]")].map(element => element.id),
    typeface: document.fonts.check("16px Inter"),
  };
}
"""
