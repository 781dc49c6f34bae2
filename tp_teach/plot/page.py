"""`Page`: a sheet measured in inches from its top left corner, on which a figure is laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.text import Text

from tp_teach.plot.picture import Picture
from tp_teach.plot.style import (
    INK,
    LABEL,
    MARGIN,
    PAPER,
    QUIET,
    SMALL,
    TITLE,
    WIDTH,
    hatch_colour,
    rank_colour,
    rank_hatch,
)
from tp_teach.plot.words import width_of, wrap, wrap_words

LINE = 1.28 / 72  # inches from one line to the next, for each point of letter size
TINY = 0.06  # inches
CHIP = 0.36  # inches, the square that stands for a rank


class Page:
    """Collects boxes, texts and axes; `picture` turns them into one figure once the height is known."""

    def __init__(self) -> None:
        self.artists: list[Artist] = []
        self.plots: list[tuple[float, float, float, float, Callable[[Axes], None]]] = []

    def text(self, x: float, y: float, text: str, size: float = SMALL, **looks: Any) -> float:
        """One line with its top at `y`; returns the `y` of the next line."""
        looks = {"ha": "left", "va": "top", "color": INK, "parse_math": False, **looks}
        self.artists.append(Text(x, y, text, fontsize=size, **looks))
        return y + size * LINE

    def lines(self, x: float, y: float, lines: Sequence[str], size: float = SMALL, **looks: Any) -> float:
        """Lines below each other; returns the `y` of the next one."""
        for line in lines:
            y = self.text(x, y, line, size, **looks)
        return y

    def title(self, title: str, subtitle: str) -> float:
        """The figure's head; returns the `y` below it."""
        y = self.text(MARGIN, MARGIN, title, TITLE, weight="bold")
        return self.lines(MARGIN, y + 0.02, wrap_words(subtitle, WIDTH - 2 * MARGIN, SMALL), color=QUIET) + 0.12

    def rank_key(self, ranks: Sequence[int]) -> None:
        """What each rank looks like, at the right of the title; of many ranks the first eight and the last number."""
        shown = ranks[:8]
        more = f"… {ranks[-1]}" if len(ranks) > 8 else ""
        top = MARGIN - 0.08
        x = WIDTH - MARGIN - (width_of(more, SMALL) + 0.1 if more else 0)
        if more:
            self.text(WIDTH - MARGIN, top + CHIP / 2, more, ha="right", va="center_baseline")
        x -= len(shown) * CHIP + (len(shown) - 1) * 0.12
        self.text(x - 0.12, top + CHIP / 2, "rank", ha="right", va="center_baseline")
        for rank in shown:
            self.chip(x, top, rank, gid=f"copy key rank {rank}")
            x += CHIP + 0.12

    def chip(self, x: float, y: float, rank: int, gid: str | None = None) -> None:
        """A square with a rank's colour, hatch and number, its top left corner at (x, y)."""
        self.rank_box(x, y, CHIP, CHIP, rank, gid)
        self.badge(x + CHIP / 2, y + CHIP / 2, str(rank))

    def foot(self, y: float, sentences: Sequence[str]) -> float:
        """The figure's last lines, none broken inside a sentence that fits a line; returns its height."""
        room = WIDTH - 2 * MARGIN
        pieces = [line for sentence in sentences for line in wrap_words(sentence, room, SMALL)]
        return self.lines(MARGIN, y, wrap(pieces, room, SMALL, joint=" "), color=QUIET) + MARGIN - 0.05

    def box(self, x: float, y: float, width: float, height: float, **looks: Any) -> None:
        """A rectangle with its top left corner at (x, y), in inches."""
        self.artists.append(Rectangle((x, y), width, height, **looks))

    def boxes(self, places: Sequence[tuple[float, float, float, float]], **looks: Any) -> None:
        """Many rectangles of one look, as left, top, width and height in inches: quicker than one after the other."""
        corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h)) for x, y, w, h in places]
        self.artists.append(PolyCollection(corners, **looks))

    def line(self, x: Sequence[float], y: Sequence[float], **looks: Any) -> None:
        """A line through points in inches."""
        self.artists.append(Line2D(x, y, solid_capstyle="butt", **looks))

    def arrow(self, tail: tuple[float, float], tip: tuple[float, float], colour: str) -> None:
        """A straight arrow from `tail` to `tip`, in inches."""
        looks = {"arrowstyle": "-|>", "mutation_scale": 20, "shrinkA": 0, "shrinkB": 0, "linewidth": 3}
        self.artists.append(FancyArrowPatch(tail, tip, color=colour, **looks))

    def filled(
        self, x: float, y: float, width: float, height: float, colour: str, hatch: str, gid: str | None = None
    ) -> None:
        """A hatched rectangle with a thin dark outline, named `gid`. One too small for a hatch has its colour alone."""
        small = min(width, height) < TINY
        looks = {"facecolor": colour, "edgecolor": hatch_colour(colour), "hatch": "" if small else hatch}
        self.box(x, y, width, height, linewidth=0, gid=gid, **looks)
        self.box(x, y, width, height, fill=False, edgecolor=INK, linewidth=0.3 if small else 1.2)

    def rank_box(self, x: float, y: float, width: float, height: float, rank: int, gid: str | None = None) -> None:
        """A rectangle in a rank's colour and hatch."""
        self.filled(x, y, width, height, rank_colour(rank), rank_hatch(rank), gid)

    def plated(self, x: float, y: float, text: str, size: float = SMALL, **looks: Any) -> None:
        """One line centred at height `y`, on white, so that no grid line runs through it."""
        plate = {"boxstyle": "square,pad=0.05", "facecolor": PAPER, "edgecolor": "none"}
        self.text(x, y, text, size, **{"va": "center_baseline", "bbox": plate, **looks})

    def badge(self, x: float, y: float, text: str) -> None:
        """A small white plate centred at (x, y), so that its text reads on any hatch."""
        plate = {"boxstyle": "round,pad=0.12", "facecolor": PAPER, "edgecolor": "none"}
        self.text(x, y, text, SMALL, ha="center", va="center", weight="bold", bbox=plate)

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, dict]], swatch: float = 0.36) -> float:
        """Swatches (inches wide) with their words, wrapped; looks as for `swatch`. Returns the `y` below."""
        line, room = 0.34, WIDTH - MARGIN - x
        left = x
        for words, looks in entries:
            width = swatch + 0.1 + width_of(words, SMALL)
            if left > x and left + width > x + room:
                left, y = x, y + line
            self.swatch(left, y + 0.02, swatch, 0.2, looks)
            self.text(left + swatch + 0.1, y + 0.12, words, va="center_baseline")
            left += width + 0.3
        return y + line

    def swatch(self, x: float, y: float, width: float, height: float, looks: dict) -> None:
        """What stands for an entry of a legend: a box with `colour` and `hatch`, or a line with other looks."""
        if "colour" in looks:
            self.filled(x, y, width, height, looks["colour"], looks["hatch"])
        else:
            self.line((x, x + width), (y + height / 2, y + height / 2), **looks)

    def plot(self, x: float, y: float, width: float, height: float, draw: Callable[[Axes], None]) -> None:
        """Axes at (x, y), in inches; `draw` fills them."""
        self.plots.append((x, y, width, height, draw))

    def picture(self, height: float, alt: str) -> Picture:
        """The figure, `height` inches high."""
        picture = Picture(WIDTH, height, alt)
        for x, y, w, h, draw in self.plots:
            axes = picture.add_axes((x / WIDTH, 1 - (y + h) / height, w / WIDTH, h / height))
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=SMALL)
            draw(axes)
            axes.xaxis.label.set_size(LABEL)
            axes.yaxis.label.set_size(LABEL)
        sheet = picture.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0), label="sheet")
        sheet.set_axis_off()
        for artist in self.artists:
            sheet.add_artist(artist)
        return picture
