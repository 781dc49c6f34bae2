"""Every slide and every page in a real browser: nothing runs over an edge, nothing is missing, nothing is loaded."""

import re
from pathlib import Path

import pytest
from nbformat.v4 import new_notebook

from tests.pages.chromium import LOOK, chromium, needs_chromium, open_file, walk
from tests.pages.notebooks import TITLE, code, hard, mathematics, picture, series, text
from tp_teach.lesson.pages.series import WORKSHOP, lessons, workshop
from tp_teach.lesson.site import pages
from tp_teach.lesson.slides import deck

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page():
    with chromium() as page:
        yield page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return list(pages(NOTEBOOKS, tmp_path_factory.mktemp("site")))


CODE_SIZES = "[...document.querySelectorAll('pre.code')].map(code => parseFloat(getComputedStyle(code).fontSize))"


def test_every_slide_of_every_deck(page, tmp_path):
    series = lessons(NOTEBOOKS)
    # The workshop's deck has all slides of its notebooks; only the other notebooks are walked by themselves.
    chosen = {"workshop": workshop(series)} | {one.number: one.notebook for one in series if one.number not in WORKSHOP}
    wrong, code_sizes = {}, []
    for name, notebook in chosen.items():
        wrong[name] = walk(page, deck(notebook, tmp_path / f"{name}.html"))
        code_sizes += page.evaluate(CODE_SIZES)
    assert all(count > 5 for count, _ in wrong.values())
    assert not [fault for _, faults in wrong.values() for fault in faults]
    assert min(code_sizes) >= 18


def test_slides_that_are_hard_to_fit(page, tmp_path):
    count, wrong = walk(page, deck(hard(), tmp_path / "hard.html"))
    assert count > 20 and not wrong


def style(rule):
    return lambda html: html.replace("</style>", rule + "</style>", 1)


def at_the_end(tag):
    return lambda html: tag.join(html.rpartition("</body>")[::2])


@pytest.fixture(scope="module")
def whole(page, tmp_path_factory):
    """A deck in which nothing is wrong."""
    cells = [
        TITLE,
        text("## A\n\nSome words."),
        code("x = 1"),
        mathematics(),
        text("## B"),
        code("y", picture(1000, 600)),
    ]
    path = deck(new_notebook(cells=cells), tmp_path_factory.mktemp("whole") / "d.html")
    assert walk(page, path)[1] == []
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (style(".words { font-size: 90px !important }"), "over the edge"),
        (style("pre { letter-spacing: 20em }"), "over the edge"),
        (style(".words { margin-bottom: -90px }"), "one over the other"),
        (lambda html: html.replace("base64,iVBOR", "base64,AAAA"), "missing image"),
        (lambda html: re.sub("<math.*?</math>", r"$\\frac{1}{2}$", html, flags=re.DOTALL), "mathematics as text"),
        (at_the_end('<img src="https://example.org/x.png">'), "asked for https://example.org/x.png"),
        (at_the_end("<script>no_such()</script>"), "no_such is not defined"),
    ],
    ids=["text", "code", "overlap", "image", "mathematics", "network", "script"],
)
def test_a_spoilt_deck_is_found_out(page, whole, tmp_path, spoil, fault):
    assert spoil(whole) != whole
    path = tmp_path / "d.html"
    path.write_text(spoil(whole), encoding="utf-8")
    assert [one for one in walk(page, path)[1] if fault in one]


def test_the_speakers_window_has_the_notes_and_keys_lead_from_slide_to_slide(page, tmp_path):
    cells = [TITLE, text("## A\n\nWords."), text("Say *this*.", "notes")]
    open_file(page, deck(new_notebook(cells=cells), tmp_path / "d.html"))
    page.wait_for_function("Reveal.isReady()")
    assert page.evaluate("Reveal.hasPlugin('notes')")
    assert "For the speaker." in page.evaluate("Reveal.getSlideNotes()")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[Reveal.getIndices().h, Reveal.getSlideNotes().trim()]") == [1, "<p>Say <em>this</em>.</p>"]
    assert page.locator(".slide-number").inner_text().split() == ["2", "/", "2"]
    assert not page.locator("aside.notes").last.is_visible()


def test_every_page_of_the_site_in_light_and_dark_wide_and_narrow(page, site):
    looks, anchors, links = set(), {}, set()
    for path in site:
        open_file(page, path, "style.css")
        for scheme, width in (("light", 1280), ("dark", 420)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            look = page.evaluate(LOOK)
            assert look["wide"] <= width and look["typeface"], path
            assert not look["missing"] + look["faint"] + page.asked + page.faults, path
            looks.add((scheme, look["paper"], look["ink"]))
            anchors[path.as_uri()] = ["", *look["anchors"]]
            links |= set(look["links"])
    assert looks == {
        ("light", "rgb(255, 255, 255)", "rgb(26, 26, 26)"),
        ("dark", "rgb(20, 23, 28)", "rgb(230, 230, 230)"),
    }
    assert not [link for link in links if link.partition("#")[2] not in anchors.get(link.partition("#")[0], [])]


def test_a_page_shows_mathematics_answers_and_pictures(page, tmp_path):
    answer = text("<details><summary>Solution</summary>\n\n```python\nx = 1\n```\n</details>")
    cells = [TITLE, mathematics(), code("y", picture(1000, 600, "what it shows")), answer]
    written = pages(series(tmp_path, new_notebook(cells=cells)), tmp_path / "out")
    path = next(path for path in written if path.name.startswith("07"))
    open_file(page, path, "style.css")
    assert page.locator("math").count() == 2 and page.get_by_alt_text("what it shows").is_visible()
    assert page.evaluate("Math.min(...[...document.querySelectorAll('math')].map(one => one.clientHeight))") > 15
    assert not page.get_by_text("x = 1").is_visible()
    page.get_by_text("Solution").click()
    assert page.get_by_text("x = 1").is_visible()
