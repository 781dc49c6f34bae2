"""Decks printed to PDF, in a browser that is not the one of the other tests."""

import re

from nbformat.v4 import new_notebook

from tests.pages.chromium import needs_chromium
from tests.pages.notebooks import TITLE, code, picture, series, text
from tp_teach.lesson.slides import main

pytestmark = needs_chromium


def test_a_pdf_has_a_page_for_each_slide(tmp_path, monkeypatch, capsys):
    cells = [TITLE, text("## A\n\nWords."), text("## B"), code("y", picture(1000, 600))]
    folder = str(series(tmp_path, new_notebook(cells=cells)))
    monkeypatch.setattr("sys.argv", ["slides", "--pdf", "--notebooks", folder, "--out", folder])
    main()
    names = ["07_a_name.html", "workshop.html", "07_a_name.pdf", "workshop.pdf"]
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in names]
    assert len(re.findall(rb"/Type /Page\b(?!s)", (tmp_path / "07_a_name.pdf").read_bytes())) == 3
