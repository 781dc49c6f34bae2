"""What a drawn figure really covers, in pixels: texts, and the rectangles that carry a name."""

from __future__ import annotations

from itertools import combinations

from matplotlib.axis import Axis
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tp_teach.plot.picture import Picture

APART = 8  # pixels, of 200 an inch: the least distance between two texts side by side


def texts(picture: Picture) -> list[tuple[str, Bbox, bool]]:
    """Each text that is seen: its words, its box, and whether it stands on a plate of its own."""
    picture.draw_without_rendering()
    hidden = {id(text) for axes in picture.axes for axis in (axes.xaxis, axes.yaxis) for text in _unseen(axis)}
    hidden |= {
        id(text)
        for axes in picture.axes
        if not axes.axison
        for axis in (axes.xaxis, axes.yaxis)
        for text in axis.findobj(Text)
    }
    seen = [text for text in picture.findobj(Text) if text.get_visible() and text.get_text() and id(text) not in hidden]
    return [(text.get_text(), text.get_window_extent(), text.get_bbox_patch() is not None) for text in seen]


def _unseen(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [text for tick in ticks if not low <= tick.get_loc() <= high for text in tick.findobj(Text)]


def rectangles(picture: Picture, start: str) -> dict[str, Bbox]:
    """The boxes, in pixels, of the rectangles whose name begins with `start`."""
    found = picture.findobj(lambda artist: isinstance(artist, Rectangle) and (artist.get_gid() or "").startswith(start))
    assert len({artist.get_gid() for artist in found}) == len(found), "two rectangles of one name"
    return {artist.get_gid(): artist.get_window_extent() for artist in found}


def faults(picture: Picture) -> list[str]:
    """What a reader would see as wrong: text that is cut off, or that lies over other text or over a block."""
    width, height = picture.canvas.get_width_height()
    seen = texts(picture)
    found = [
        f"{words!r} leaves the canvas"
        for words, box, _ in seen
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    found += [
        f"{first!r} lies over {second!r}"
        for (first, a, _), (second, b, _) in combinations(seen, 2)
        if _shared(a.expanded(1, 0.8).padded(APART, 0), b.expanded(1, 0.8)) > 0
    ]
    blocks = rectangles(picture, "block ") | rectangles(picture, "copy ")
    found += [
        f"{words!r} lies over {name!r}"
        for words, box, plated in seen
        if not plated
        for name, block in blocks.items()
        if _shared(box, block) > 4
    ]
    return found


def _shared(a: Bbox, b: Bbox) -> float:
    """The area that two boxes share, in square pixels."""
    return max(0, min(a.x1, b.x1) - max(a.x0, b.x0)) * max(0, min(a.y1, b.y1) - max(a.y0, b.y0))
