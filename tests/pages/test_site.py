"""The site's files and the API reference, without a browser."""

import re

from nbformat.v4 import new_notebook

import tp_teach as tp
from tests.pages.notebooks import TITLE, code, picture, printed, series, text
from tp_teach.lesson.pages.reference import entries
from tp_teach.lesson.site import pages


def test_the_reference_has_every_public_name_with_what_its_docstring_says():
    found = {entry.name: entry for entry in entries()}
    assert {f"tp.{name}" for name in tp.__all__} == {name for name, entry in found.items() if entry.level == 2}
    assert all(re.sub("<[^>]+>", "", entry.text).strip() for entry in found.values())
    assert {f"tp.plot.{name}" for name in tp.plot.__all__} <= set(found)
    assert {"tp.explore.ring", "Run.save", "Run.compare", "TrainConfig.preset"} <= set(found)


def test_a_signature_is_what_one_would_write():
    found = {entry.name: re.sub("<[^>]+>", "", entry.signature) for entry in entries()}
    assert found["tp.device"] == "tp.device() -&gt; torch.device"
    assert found["tp.launch"].splitlines()[:4] == [
        "tp.launch(",
        "    fn: Callable[..., Any],",
        "    *args: Any,",
        "    world_size: int,",
    ]
    assert found["tp.RankFailed"] == "tp.RankFailed"
    assert "    *,\n    seconds: bool = False," in found["tp.measure"]


def test_links_between_notebooks_lead_to_their_pages(tmp_path):
    links = "[a](08_a_name.ipynb), [b](08_a_name.ipynb#part), [c](https://example.org/x.ipynb)"
    cells = [TITLE, text(links), code("shown()", printed("out"), picture(100, 60, "seen"), kind="skip")]
    other = new_notebook(cells=[text("# 08 · Other\n\nIts lead.")])
    made = {
        path.stem: path.read_text(encoding="utf-8")
        for path in pages(series(tmp_path, new_notebook(cells=cells), other), tmp_path)
    }
    assert list(made) == ["index", "07_a_name", "08_a_name", "reference"]
    page = made["07_a_name"]
    assert 'href="08_a_name.html"' in page and 'href="08_a_name.html#part"' in page and 'x.ipynb"' in page
    assert 'alt="seen"' in page and ">out</pre>" in page and "Next: 08 · Other" in page
    assert "Its lead." in made["index"] and 'href="07_a_name.html"' in made["index"]
