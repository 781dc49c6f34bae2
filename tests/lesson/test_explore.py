"""Sliders: a moved control draws the figure anew, and the same output reads without a kernel."""

from base64 import b64encode

import ipywidgets
import nbformat
import pytest

import tp_teach as tp
from tp_teach.lesson.rerun import canonical

READY = {"ring": "ranks", "matmul": "cut", "shards": "hidden_dim", "comm": "batch_size", "memory": "num_layers"}
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize("name", READY)
def test_a_moved_control_changes_the_image(name):
    explorer = getattr(tp.explore, name)()
    before, words = explorer.image.value, repr(explorer)
    control = explorer.controls[READY[name]]
    control.value = next(option for option in control.options if option != control.value)
    assert explorer.image.value != before and repr(explorer) != words
    assert b64encode(explorer.picture.png()).decode() in explorer.image.value


def test_the_figure_is_that_of_tp_predict():
    config = tp.TrainConfig.preset("classroom")
    explorer = tp.explore.comm(config)
    assert repr(explorer) == tp.plot.comm(tp.predict(config, 4)).alt
    explorer.controls["ranks"].value = 2
    assert repr(explorer) == tp.plot.comm(tp.predict(config, 2)).alt


def test_one_output_is_live_still_and_stable():
    explorer = tp.explore.matmul()
    data, about = explorer._repr_mimebundle_()
    assert set(data) == {WIDGET, "image/png", "text/plain"}
    assert data["text/plain"] == about["image/png"]["alt"] == tp.plot.matmul().alt
    assert data["image/png"] in explorer.image.value and f'alt="{data["text/plain"]}"' in explorer.image.value
    again, _ = tp.explore.matmul()._repr_mimebundle_()
    assert {key: again[key] for key in again if key != WIDGET} == {key: data[key] for key in data if key != WIDGET}


def test_a_stored_notebook_holds_the_picture_and_no_widget():
    data, about = tp.explore.matmul()._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data=data, metadata=about)
    cell = nbformat.v4.new_code_cell("tp.explore.matmul()", outputs=[output])
    stored = canonical(nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {"state": {}}}))
    assert set(stored.cells[0].outputs[0].data) == {"image/png", "text/plain"}
    assert "widgets" not in stored.metadata


def test_what_does_not_divide_is_a_sentence_and_the_next_move_draws_again():
    explorer = tp.explore.matmul()
    explorer.controls["ranks"].value = 7
    assert repr(explorer) == "384 output features do not divide over 7 ranks; use 378 or 385"
    explorer.controls["ranks"].value = 4
    assert repr(explorer) == tp.plot.matmul().alt


def test_the_last_step_follows_the_number_of_ranks():
    explorer = tp.explore.ring()
    explorer.controls["step"].value = 6
    explorer.controls["ranks"].value = 2
    assert explorer.controls["step"].max == explorer.controls["step"].value == 2
    assert repr(explorer) == tp.plot.ring(2, step=2).alt


def test_ones_own_figure_and_controls():
    def draw(n, op, large, scale):
        return tp.plot.curves({op: [scale * step for step in range(n)]}, "Large" if large else "Small")

    own = ipywidgets.FloatSlider(2.0)
    explorer = tp.explore.figure(draw, n=range(2, 5), op=["a", "b"], large=False, scale=own)
    kinds = [type(control).__name__ for control in explorer.controls.values()]
    assert kinds == ["SelectionSlider", "Dropdown", "Checkbox", "FloatSlider"]
    assert repr(explorer).startswith("Small: loss (no unit) over training steps. a: rises from 0.00 to 2.00")
    explorer.controls["large"].value = True
    assert repr(explorer).startswith("Large")


def test_a_control_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match=r"n=3 is no control; use a list of numbers or of words, True, False, or a wid"
    ):
        tp.explore.figure(tp.plot.ring, n=3)
    with pytest.raises(ValueError, match="there is nothing to move; give a control"):
        tp.explore.figure(tp.plot.ring)
    with pytest.raises(TypeError, match="config=4 is not a TrainConfig"):
        tp.explore.memory(4)
