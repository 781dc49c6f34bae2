"""The walkthrough as a learner has it: JupyterLab in a real browser, Run All on the first notebook."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
NOTEBOOK = "00_four_ranks_in_a_cell.ipynb"
SLIDERS = "sliders.ipynb"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """JupyterLab on a copy of the notebooks, so that a run leaves the stored outputs alone. `{}` stands for a file."""
    tmp_path = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    cell = nbformat.v4.new_code_cell("import tp_teach as tp\n\ntp.explore.matmul()")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), tmp_path / "notebooks" / SLIDERS)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    # As on a first day: without the theme, the open tabs and the settings of whoever runs the tests.
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    lab = subprocess.Popen(
        command,
        cwd=tmp_path / "notebooks",
        env={**os.environ, **{name: str(tmp_path / name) for name in folders}},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        address = re.compile(r"http://127\.0\.0\.1:\d+/lab\?token=\w+")
        found = next(match for line in lab.stderr if (match := address.search(line)))
        yield found[0].replace("/lab?", "/lab/tree/{}?reset&")  # without the tabs of the test before
    finally:
        lab.terminate()
        lab.communicate(timeout=30)


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        yield page
        browser.close()


def choose(page: Page, menu: str, entry: str) -> None:
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=entry, exact=True).click()


def test_run_all_of_the_first_notebook(page, address):
    page.goto(address.format(NOTEBOOK))
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    last_answer = page.get_by_text("who-waits: not yet")
    choose(page, "Edit", "Clear Outputs of All Cells")
    last_answer.wait_for(state="detached")
    choose(page, "Run", "Run All Cells")
    last_answer.wait_for(state="attached", timeout=120_000)
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    figures = page.locator(".jp-RenderedImage img").all()
    assert len(figures) == 5
    figures += page.locator(".widget-html img").all()
    assert len(figures) == 7
    for figure in figures:
        assert figure.evaluate("image => image.naturalWidth") > 0


def test_a_moved_slider_draws_the_figure_anew(page, address):
    page.goto(address.format(SLIDERS))
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    choose(page, "Run", "Run All Cells")
    figure = page.locator(".widget-html img")
    figure.wait_for(timeout=60_000)
    assert figure.get_attribute("alt").startswith("Column-parallel matrix product over 4 ranks")
    page.locator(".noUi-handle").first.press("ArrowLeft")
    moved = page.locator(".widget-html img[alt^='Column-parallel matrix product over 3 ranks']")
    moved.wait_for(timeout=60_000)
    assert moved.evaluate("image => [image.naturalWidth, image.clientWidth <= 1000]") == [2000, True]
