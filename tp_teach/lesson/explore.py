"""Sliders over a figure: `tp.explore.memory(config)`, or `tp.explore.figure(draw, ranks=[1, 2, 4, 8])` for one's own.

Move a control and the figure is drawn anew. Where no kernel runs (GitHub, an exported page, a slide, a PDF), the figure
of the last state is there as a picture with its alt text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets

from tp_teach import plot
from tp_teach.model.config import TrainConfig
from tp_teach.plot.notice import sentence
from tp_teach.plot.picture import Picture
from tp_teach.predict import predict
from tp_teach.run import Run

RANKS = (1, 2, 3, 4, 6, 8)


class Explorer(ipywidgets.VBox):
    """Controls above the figure that `draw` makes of their values. `picture` is the figure that is shown.

    A ValueError of `draw`, such as a width that the ranks do not divide, is shown as a sentence in the figure's place.
    """

    def __init__(self, draw: Callable[..., Picture], controls: dict[str, ipywidgets.Widget]) -> None:
        self.draw = draw
        self.controls = controls
        # Not ipywidgets.Image: it has no alt text, and JupyterLab shows an error in its place when it has a tooltip.
        self.image = ipywidgets.HTML()
        super().__init__([*controls.values(), self.image])
        for control in controls.values():
            control.observe(lambda change: self.redraw(), "value")
        self.redraw()

    def redraw(self) -> None:
        """Draw the figure of the controls' values."""
        try:
            self.picture = self.draw(**{name: control.value for name, control in self.controls.items()})
        except ValueError as error:
            self.picture = sentence(str(error))
        data, about = self.picture._repr_mimebundle_()
        self.still = data, about
        alt, width = escape(self.picture.alt, quote=True), about["image/png"]["width"]
        source = f"data:image/png;base64,{data['image/png']}"
        self.image.value = f'<img alt="{alt}" src="{source}" style="width: {width}px; max-width: 100%">'

    def __repr__(self) -> str:
        return self.picture.alt

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        still, about = self.still
        return {**super()._repr_mimebundle_(**kwargs), **still}, about


def figure(draw: Callable[..., Picture], **controls: Any) -> Explorer:
    """Controls for the keyword arguments of `draw`, which returns a figure of `tp.plot`.

    A control is a list of numbers (a slider over them), a list of words (a menu), True or False (a box to tick), or a
    widget of ipywidgets. Sliders and menus start at their first entry.

    Raises ValueError when there are no controls, or one is nothing of these.
    """
    if not controls:
        raise ValueError("there is nothing to move; give a control, such as ranks=[1, 2, 4, 8]")
    return Explorer(draw, {name: _control(name, given) for name, given in controls.items()})


def _control(name: str, given: Any) -> ipywidgets.Widget:
    looks = _looks(name)
    if isinstance(given, ipywidgets.ValueWidget):
        return given
    if isinstance(given, bool):
        return ipywidgets.Checkbox(given, **looks)
    choices = list(given) if isinstance(given, Sequence | range) and not isinstance(given, str) else []
    if choices and all(isinstance(choice, str) for choice in choices):
        return ipywidgets.Dropdown(options=choices, **looks)
    if choices and all(isinstance(choice, int | float) for choice in choices):
        return ipywidgets.SelectionSlider(options=choices, continuous_update=False, **looks)
    raise ValueError(f"{name}={given!r} is no control; use a list of numbers or of words, True, False, or a widget")


def _looks(name: str) -> dict[str, Any]:
    """One width for all names and one for all controls, so that they stand below each other."""
    return {"description": name.replace("_", " "), "style": {"description_width": "9em"}, "layout": {"width": "32em"}}


def _slider(name: str, choices: Sequence, value: Any) -> ipywidgets.Widget:
    """A slider that starts at `value`, which is added to the choices where it is not among them."""
    control = _control(name, sorted({*choices, value}))
    control.value = value
    return control


def ring() -> Explorer:
    """The ring all_reduce: number of ranks, and which step; step 0 shows all of them."""
    ranks = _slider("ranks", range(2, 9), 4)
    step = ipywidgets.IntSlider(0, 0, 6, continuous_update=False, **_looks("step (0: all)"))
    ipywidgets.dlink((ranks, "value"), (step, "max"), lambda n: 2 * (n - 1))
    return Explorer(lambda ranks, step: plot.ring(ranks, step=step or None), {"ranks": ranks, "step": step})


def matmul() -> Explorer:
    """A matrix product cut by column, by row, or both: number of ranks, tokens, input and output features."""

    def draw(cut: str, ranks: int, tokens: int, inputs: int, outputs: int) -> Picture:
        return plot.matmul(cut, (tokens, inputs, outputs), ranks)

    sizes = [32, 48, 96, 192, 384, 768]
    return figure(
        draw,
        cut=["column", "row", "pair"],
        ranks=_slider("ranks", range(1, 9), 4),
        tokens=_slider("tokens", sizes, 32),
        inputs=_slider("input features", sizes, 96),
        outputs=_slider("output features", sizes, 384),
    )


def shards(config: TrainConfig | None = None, parameters: str | Sequence[str] | None = None) -> Explorer:
    """Who holds what, predicted: number of ranks, width, hidden width. `parameters` as for `tp.plot.shards`."""
    return _over(config, lambda run: plot.shards(run, parameters), "d_model", "hidden_dim")


def comm(config: TrainConfig | None = None) -> Explorer:
    """Which bytes move in one step, predicted: number of ranks, samples, tokens in a sample, width."""
    return _over(config, plot.comm, "batch_size", "seq_len", "d_model")


def memory(config: TrainConfig | None = None) -> Explorer:
    """Where the memory goes, predicted: number of ranks, samples, width, layers."""
    return _over(config, plot.memory, "batch_size", "d_model", "num_layers")


def _over(config: TrainConfig | None, draw: Callable[[Run], Picture], *names: str) -> Explorer:
    """A figure of `tp.predict`, with a slider for the ranks and one for each field: halves, doubles, thirds of it."""
    config = TrainConfig.preset("classroom") if config is None else config
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config={config!r} is not a TrainConfig; make one with TrainConfig.preset('classroom')")
    controls = {"ranks": _slider("ranks", RANKS, 4)}
    for name in names:
        value = getattr(config, name)
        near = {value * part // 4 for part in (1, 2, 3, 4, 5, 6, 8, 16)} - {0}
        controls[name] = _slider(name, near, value)

    def show(ranks: int, **fields: int) -> Picture:
        return draw(predict(replace(config, **fields), ranks))

    return figure(show, **controls)
