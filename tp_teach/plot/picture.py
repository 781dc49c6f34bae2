"""`Picture`: the matplotlib Figure that every `tp.plot` function returns; it carries its alt text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from tp_teach.plot.style import INK, PAPER, SMALL

CSS_DPI = 100  # pixels that a browser gives to one inch of the figure
SHARP = 2  # stored pixels for each of those, for a retina screen or a projector

LOOKS = ("axes.", "figure.", "font.", "grid.", "hatch.", "legend.", "lines.", "mathtext.", "patch.", "path.")
LOOKS += ("savefig.", "text.", "xtick.", "ytick.")
NOT_LOOKS = ("figure.max_open_warning", "savefig.directory")


@contextmanager
def neutral() -> Iterator[None]:
    """Draw with matplotlib's own defaults and this package's letters, whatever the notebook has set."""
    defaults = matplotlib.rcParamsDefault.items()
    looks = {key: value for key, value in defaults if key.startswith(LOOKS) and key not in NOT_LOOKS}
    ours = {"font.size": SMALL, "text.color": INK, "axes.edgecolor": INK, "hatch.linewidth": 1.3}
    with matplotlib.rc_context({**looks, **ours}):
        yield


class Picture(Figure):
    """A Figure of fixed size on white, with alt text; a notebook shows it as a sharp PNG.

    `alt` says in words what the figure says, and is the output's text/plain. A Picture belongs to no
    pyplot, so it is shown once, where the cell puts it.
    """

    def __init__(self, width: float, height: float, alt: str) -> None:
        """`width` and `height` in inches. Raises ValueError for an empty alt text."""
        if not alt.strip():
            raise ValueError("alt is empty; say in words what the figure shows")
        super().__init__(figsize=(width, height), dpi=CSS_DPI * SHARP, facecolor=PAPER)
        FigureCanvasAgg(self)
        self.alt = alt

    def __repr__(self) -> str:
        return self.alt

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """As `Figure.savefig`, in this package's own looks."""
        with neutral():
            super().savefig(*args, **kwargs)

    def png(self) -> bytes:
        """The figure as PNG, two pixels for each pixel on the page. Equal figures give equal bytes."""
        with neutral():
            self.canvas.draw()
        image = Image.fromarray(np.asarray(self.canvas.buffer_rgba())[:, :, :3])
        buffer = BytesIO()
        # A palette of 256 colours halves the size of a saved notebook; a flat figure does not need more.
        image.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", dpi=(CSS_DPI * SHARP,) * 2)
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        width, height = (round(inches * CSS_DPI) for inches in self.get_size_inches())
        data = {"image/png": b64encode(self.png()).decode("ascii"), "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt, "width": width, "height": height}}

    def _ipython_display_(self) -> None:
        # Once pyplot is loaded, IPython has its own formatter for every Figure; it outranks a MIME bundle,
        # crops the picture and knows no alt text. This hook outranks that formatter.
        from IPython.display import publish_display_data

        publish_display_data(*self._repr_mimebundle_())
