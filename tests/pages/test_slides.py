"""What stands on which slide, without a browser."""

import re

import pytest
from nbformat.v4 import new_notebook

from tests.pages.notebooks import TITLE, code, hard, picture, place, printed, series, text
from tp_teach.lesson.pages.layout import slides
from tp_teach.lesson.pages.printing import pdfs
from tp_teach.lesson.pages.series import workshop
from tp_teach.lesson.pages.trim import MOST_LINES, drawing_lines, lesson_lines, lesson_output, wrapped
from tp_teach.lesson.slides import deck, decks, main


def of(*cells):
    return slides(new_notebook(cells=[TITLE, *cells]))


def words(slide) -> str:
    html = " ".join([slide.title, slide.text, slide.code, slide.after, *(one.html for one in slide.shown)])
    return re.sub("<[^>]+>", "", html)


def test_the_first_cell_is_the_title_slide_and_what_else_it_says_is_noted():
    (title,) = of()
    assert (title.kind, title.title) == ("title", "07 · A title")
    assert "What is it about?" in title.text and "a minute" in title.after
    assert "For the speaker." in title.notes[0] and "For the speaker." not in words(title)


def test_skipped_cells_are_on_no_slide():
    made = of(text("## Seen"), text("Unseen", "skip"), code("unseen()", printed("unseen"), kind="skip"), code("seen()"))
    assert "seen()" in words(made[-1]) and "unseen" not in " ".join(map(words, made)).lower()


def test_notes_go_to_the_slide_before_them():
    made = of(text("## One"), code("one()"), text("Say this.", "notes"), text("## Two"), code("two()"))
    assert "Say this." in made[1].notes[0] and "Say this." not in " ".join(map(words, made))
    assert not made[2].notes


def test_code_stands_left_and_what_it_shows_right():
    _, small, large = of(
        text("## Run"), code("run()", printed("done")), text("## See"), code("see()", picture(1000, 600))
    )
    assert (small.kind, small.split) == ("run", 0.5)
    assert (large.kind, [one.kind for one in large.shown]) == ("figure", ["figure"])


def test_a_figure_is_there_at_once_and_what_is_said_of_it_follows(tmp_path):
    cells = [TITLE, text("## See"), code("see()", picture(1000, 600)), text("Said.", "fragment")]
    html = deck(new_notebook(cells=cells), tmp_path / "d.html").read_text(encoding="utf-8")
    steps = re.findall(r'<div class="[^"]*fragment">(.*?)</div>', html, re.DOTALL)
    assert [re.sub("<[^>]+>", "", step).strip() for step in steps] == ["Said."]


LONG = "table = pd.DataFrame([first, second, third]).T\n" * 6
DRAWS = 'tp.plot.grid(table, "What each rank keeps, in bytes")'


def test_beside_a_figure_code_is_large_and_lines_that_arrange_its_numbers_are_in_the_notes():
    run = "run = tp.launch(keep, world_size=4)"
    made = of(text("## See"), code(f"{run}\n{LONG}{DRAWS}", picture(1000, 600)))[1:]
    assert [(slide.kind, slide.code) for slide in made] == [("figure", f"{run}\n# …\n{DRAWS}")]
    assert made[0].code_size >= 18 and LONG in made[0].notes[0]


def test_code_that_cannot_be_shortened_stands_before_its_figure_and_the_sentence_beside_it():
    whole = "run = tp.launch(\n" + "    an_argument_with_a_long_name=its_value,\n" * 9 + ")"
    made = of(text("## See"), code(whole, picture(1000, 600)), text("Said.", "fragment"))[1:]
    assert [(slide.kind, slide.code, "Said." in slide.after) for slide in made] == [
        ("run", whole, False),
        ("figure", "", True),
    ]


def test_of_code_that_draws_the_launches_and_what_they_use_are_kept():
    source = "def f():\n    pass\n\nother = 1\nn = 2\nrun = tp.launch(f, n)\ntable = run[0]\ntable.x = 1\nplot(table)"
    assert drawing_lines(source) == "def f():\n    pass\n# …\nn = 2\nrun = tp.launch(f, n)\n# …\nplot(table)"
    assert drawing_lines("plot(table)") == "plot(table)"
    assert drawing_lines("%magic\nplot()") == "%magic\nplot()"


def test_a_question_has_a_slide_of_its_own_before_the_code_that_answers_it():
    made = of(text("## Sum\n\n**Question.** How?\n\n**Predict.** What?"), code("answer()", printed("10")))
    assert [slide.kind for slide in made] == ["title", "question", "run"]
    assert [slide.title for slide in made[1:]] == ["Sum", "Sum"]


def test_what_is_to_be_predicted_does_not_stand_beside_the_figure_that_tells_it():
    asked = text("### How far?\n\n**Predict.** What?", "subslide")
    assert [slide.kind for slide in of(asked, code("see()", picture(1000, 600)))] == ["title", "text", "figure"]
    assert [slide.kind for slide in of(asked, code("see()", printed("10")))] == ["title", "run"]


def test_the_answer_of_an_exercise_is_on_the_slide_after_it():
    solution = "<details><summary>Solution</summary>\n\nSo:\n\n```python\nx = 1\n```\n</details>"
    made = of(
        text("## Exercises\n\n**1. One.** What is x?"),
        code('x = None\ntp.check("x", x)', printed("x: not yet: no answer")),
        text(solution, "subslide"),
    )
    exercise, answer = made[1:]
    assert (exercise.title, answer.title, answer.kind) == ("1. One", "Solution: 1. One", "answer")
    assert "What is x?" in words(exercise) and "not yet" not in words(exercise) and "x = 1" not in words(exercise)
    assert "So:" in words(answer) and "x = 1" in words(answer)


def test_what_does_not_fit_goes_on_and_nothing_is_lost():
    made = slides(hard())
    said = " ".join(map(words, made))
    for line in range(40):
        assert f"result_{line} = " in said
    for row in range(25):
        assert f"row {row}" in said
    assert said.count("without a word being said") == 3 + 18 + 3 + 30 + 14 + 8 + 10


def test_the_readers_own_answers_and_assertions_are_left_out():
    source = 'x = 1\nprint("x: I predicted", my_x, "and it is", x)\nassert x == 1, (\n    x,\n)\n'
    source += "for y in z:\n    f(y)\n    assert y\n"
    assert lesson_lines(source) == 'x = 1\nprint("x: it is", x)\nfor y in z:\n    f(y)'
    assert lesson_lines('print(f"{n} I predicted {my_x[n]}, and it was {x}")') == 'print(f"{n} it was {x}")'
    assert lesson_lines("def f():\n    assert x\n") == "def f():\n    assert x"
    assert lesson_output("x: I predicted nothing yet and it is 1\n", checks=False) == "x: it is 1"


def test_long_output_is_cut_and_says_how_much_is_left_out():
    lines = lesson_output("line\n" * 50, checks=False).splitlines()
    assert len(lines) == MOST_LINES and lines[-1] == f"… and {50 - MOST_LINES + 1} lines more"


def test_long_lines_are_broken_after_commas_and_never_within_a_string():
    line = 'f("one, two three four five six", second_argument, third_argument)'
    assert wrapped(line, 55) == 'f("one, two three four five six", second_argument,\n    third_argument)'
    assert wrapped('    f("one two three four five six seven")', 20) == '    f("one two three four five six seven")'


def test_there_is_a_deck_for_each_notebook_and_the_workshop_takes_its_own_as_they_come(tmp_path):
    notebooks = [
        new_notebook(cells=[text(f"# {number} · Name {number}\n\nLead."), text(f"## Part {number}\n\nWords.")])
        for number in ("00", "01", "02", "06")
    ]
    made = list(decks(series(tmp_path, *notebooks), tmp_path / "out"))
    assert [path.stem for path in made] == ["00_a_name", "01_a_name", "02_a_name", "06_a_name", "workshop"]
    html = made[-1].read_text(encoding="utf-8")
    assert [number for number in ("00", "01", "02", "06") if f"Part {number}" in html] == ["00", "02"]


def test_a_deck_names_nothing_that_would_be_loaded(tmp_path):
    html = deck(new_notebook(cells=[TITLE, text("## See"), code("f()", picture(1000, 600))]), tmp_path / "d.html")
    html = html.read_text(encoding="utf-8")
    html = re.sub("<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.findall(r"<(?:link|script|iframe|object|embed)", html)
    loaded = re.findall(r"""url\(["']?([^)"']+)|<img[^>]* src="([^"]+)|@import ([^;]+)""", html)
    assert len(loaded) > 5 and all("".join(one).startswith("data:") for one in loaded)


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (text("$\\frobnicate{x}$"), r"the formula \\frobnicate\{x\} uses \\frobnicate, which is not known here"),
        (code("f()", picture(10, 10, alt="")), "a figure has no alt text"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_decks_name(tmp_path, cell, sentence):
    with pytest.raises(ValueError, match=f"^d: {sentence}"):
        deck(new_notebook(cells=[TITLE, cell]), tmp_path / "d.html")


def test_the_command_says_in_one_sentence_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["slides", "--notebooks", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == f"{tmp_path} holds no notebook named like 00_four_ranks_in_a_cell.ipynb\n"


def test_without_a_browser_the_pdf_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="^no Chromium or Chrome is installed"):
        list(pdfs([]))


def test_the_workshop_starts_with_a_list_of_its_parts():
    assert place("slide") == workshop([]).cells[0].metadata
    assert [slide.title for slide in slides(workshop([]))][:1] == ["Tensor parallelism in three hours"]
