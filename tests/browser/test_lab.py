"""The walkthrough as a learner has it: JupyterLab in a real browser.

Each test leaves a picture of its page in build/browser, also when it fails.
"""

import re
from collections.abc import Iterator

import nbformat
import psutil
import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect, sync_playwright

from tests.browser.lab import ERROR, NOTEBOOKS, PICTURES, Lab, cell, choose, idle, run_all, run_cell, running_lab
from tests.launch.processes import gone, ranks_of, wait_until
from tests.pages.chromium import CHROMIUM, QUIET, needs_chromium

pytestmark = needs_chromium

EXPLORERS = [
    "tp.explore.ring()",
    "tp.explore.matmul()",
    "tp.explore.shards()",
    "tp.explore.comm()",
    "tp.explore.memory()",
    'tp.explore.figure(lambda log: tp.plot.curves({"loss": [8.0, 4.0, 2.0]}, "Loss", log=log), log=False)',
]
WORK = """
import time
import torch.distributed as dist
import tp_teach as tp

def work_for_ever():
    for step in tp.progress(range(10**6)):
        time.sleep(0.01)
"""
# The question whether to fetch news would lie over the notebook.
NO_QUESTION = {"apputils-extension/notification": {"fetchNews": "false"}}
LAUNCH = [WORK.strip(), "tp.launch(work_for_ever, world_size=2)", "tp.launch(dist.get_rank, world_size=2).values"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), NO_QUESTION) as lab:
        lab.write("explorers.ipynb", "import tp_teach as tp", *EXPLORERS)
        lab.write("launch.ipynb", *LAUNCH)
        yield lab


@pytest.fixture(scope="module")
def browser() -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield browser.new_context(viewport={"width": 1280, "height": 900})
        browser.close()


@pytest.fixture
def page(browser: BrowserContext, lab: Lab, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A new page. After the test it is a picture, and no kernel runs."""
    page = browser.new_page()
    yield page
    picture(page, request.node.name.removeprefix("test_"))
    page.close()
    lab.shut_down_kernels()


def picture(page: Page, name: str) -> None:
    """Keep a picture of the page, as high as its notebook."""
    # The browser only guesses the heights of cells that were never in sight.
    page.add_style_tag(content="* { content-visibility: visible !important }")
    page.set_viewport_size({"width": 1280, "height": min(max(900, page.evaluate(HEIGHT)), 16_000)})
    page.locator(".jp-WindowedPanel-outer").evaluate_all("all => all.forEach(one => one.scrollTo(0, 0))")
    PICTURES.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "_", name).strip("_")
    page.screenshot(path=PICTURES / f"{name}.png")


@pytest.mark.parametrize("name", NOTEBOOKS, ids=lambda name: name.removesuffix(".ipynb"))
def test_run_all(page, lab, name):
    """As many figures and errors as are stored: what they say is compared by nbval."""
    stored = nbformat.read(lab.folder / name, as_version=4)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    errors = sum(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    lab.open(page, name)
    prompts = run_all(page)
    assert prompts == [f"[{number}]:" for number in range(1, len(code) + 1)]
    assert page.locator(ERROR).count() == errors
    expect(page.locator(FIGURE)).to_have_count(figures)
    page.wait_for_function(f"[...document.querySelectorAll('{FIGURE}')].every(one => one.naturalWidth)")
    assert page.locator(FIGURE).evaluate_all("all => all.filter(one => !one.checkVisibility())") == []
    assert ranks_of(lab.kernel()) == []


def test_a_moved_control_draws_the_figure_anew(page, lab):
    """The first two controls of each explorer: among them a slider of each, a menu and a box to tick."""
    lab.open(page, "explorers.ipynb")
    run_all(page)
    moved = set()
    for number in range(2, 2 + len(EXPLORERS)):
        figure = cell(page, number).locator(".widget-html img")
        for control in cell(page, number).locator(".noUi-handle, select, input[type=checkbox]").all()[:2]:
            before = figure.get_attribute("src")
            moved.add(move(control))
            page.wait_for_function(DRAWN_ANEW, arg=[number, before])
        assert figure.evaluate("image => [image.naturalWidth, image.clientWidth <= 1000]") == [2000, True]
    assert moved == {"slider", "menu", "box"}


def move(control: Locator) -> str:
    """Move a slider to its end, or take the last entry of a menu, or tick a box: which it was."""
    kind = control.evaluate("one => one.tagName")
    if kind == "SELECT":
        control.select_option(index=control.locator("option").count() - 1)
        return "menu"
    if kind == "INPUT":
        control.check()
        return "box"
    control.press("End")
    return "slider"


def launch(page: Page, lab: Lab) -> list[int]:
    """The ranks of a launch that never ends, when its bar moves."""
    run_cell(page, 1)
    run_cell(page, 2).locator("progress[value]:not([value='0.000'])").wait_for(timeout=60_000)
    ranks = ranks_of(lab.kernel())
    assert len(ranks) == 2
    return ranks


def test_an_interrupted_and_a_restarted_kernel_leave_no_rank_and_launch_again(page, lab):
    lab.open(page, "launch.ipynb")
    ranks = launch(page, lab)
    kernel = lab.kernel()
    choose(page, "Kernel", "Interrupt Kernel")
    expect(cell(page, 2).locator(ERROR)).to_contain_text("KeyboardInterrupt", timeout=30_000)
    assert all(gone(rank) for rank in ranks) and ranks_of(kernel) == []
    assert page.locator("progress").count() == 0
    run_cell(page, 3).get_by_text("[0, 1]").wait_for(timeout=60_000)
    assert lab.kernel() == kernel
    picture(page, "an interrupted launch")

    ranks = launch(page, lab)
    choose(page, "Kernel", "Restart Kernel…")
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    wait_until(lambda: gone(kernel) and all(gone(rank) for rank in ranks))
    idle(page).wait_for(timeout=60_000)
    run_cell(page, 1)
    expect(run_cell(page, 3).locator(".jp-InputPrompt")).to_have_text("[2]:", timeout=60_000)
    assert psutil.pid_exists(lab.kernel())


FIGURE = ".jp-OutputArea img"
DRAWN_ANEW = """([number, before]) => {
    const image = document.querySelectorAll(".jp-CodeCell")[number - 1].querySelector(".widget-html img");
    return image && image.complete && image.src !== before;
}"""
# So high that the whole notebook is on the page: what surrounds it, and its cells.
HEIGHT = """() => {
    const [outer, inner] = ["outer", "inner"].map(part => document.querySelector(`.jp-WindowedPanel-${part}`));
    return outer ? innerHeight - outer.clientHeight + inner.scrollHeight : 0;
}"""
