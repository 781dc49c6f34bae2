"""What every figure shares: colours, hatches, glyphs, letter sizes, and how bytes are written.

A rank is told apart three ways: by colour, by hatch (grey print) and by its number. Sizes are points on
a page 10 inches wide: shown 600 pixels wide, the smallest letters are still 12 pixels high.
"""

from __future__ import annotations

from types import MappingProxyType

WIDTH = 10.0  # inches, the width of every figure
MARGIN = 0.25  # inches, kept free on each side

TITLE, LABEL, SMALL = 20, 16, 14  # points

INK, QUIET, GRID, PAPER = "#1a1a1a", "#4d4d4d", "#d9d9d9", "#ffffff"

# petroff8: Petroff, "Accessible Color Sequences for Data Visualization" (2021), arXiv:2107.02270, the
# eight-colour sequence, in its own order. Chosen to stay apart for colour-blind readers.
RANK_COLOURS = ("#1845fb", "#ff5e02", "#c91f16", "#c849a9", "#adad7d", "#86c8dd", "#578dff", "#656364")
RANK_HATCHES = ("", "//", "..", "xx", "--", "\\\\", "||", "oo")

# Collectives, memory kinds and curves take Paul Tol's "muted" and "bright" schemes (SRON technical note
# SRON/EPS/TN/09-002), so that their colours are not mistaken for a rank's.
COLLECTIVES = MappingProxyType(
    {
        "all_reduce": ("⊕", "#332288"),
        "all_gather": ("⊞", "#117733"),
        "reduce_scatter": ("⊟", "#999933"),
        "broadcast": ("◁", "#CC6677"),
        "all_to_all": ("⊠", "#882255"),
        "reduce": ("▷", "#AA4499"),
        "gather": ("≻", "#44AA99"),
        "scatter": ("≺", "#DDCC77"),
        "send": ("→", "#88CCEE"),
        "recv": ("←", "#88CCEE"),
        "barrier": ("‖", "#777777"),
    }
)
UNKNOWN_COLLECTIVE = ("○", "#777777")

KIND_STYLES = MappingProxyType(
    {
        "parameters": ("#4477AA", ""),
        "gradients": ("#EE6677", "//"),
        "optimizer": ("#228833", "xx"),
        "activations": ("#CCBB44", ".."),
        "temporary": ("#BBBBBB", "\\\\"),
    }
)

# Tol's "high-contrast" scheme: the three stay apart in grey too.
PHASE_COLOURS = MappingProxyType(
    {"forward": "#004488", "backward": "#BB5566", "optimizer": "#DDAA33", "other": "#8c8c8c"}
)

# Several runs in one figure: colour and dash. Earlier curves are drawn wider, so that curves which
# coincide are all seen.
RUN_COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE")
RUN_DASHES = ("-", (0, (4, 1.6)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def rank_colour(rank: int) -> str:
    """The colour of a rank; it repeats after 8 ranks, with another hatch."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def rank_hatch(rank: int) -> str:
    """The hatch of a rank; neighbours differ, and colour with hatch are unique among 64 ranks."""
    return RANK_HATCHES[(rank + rank // len(RANK_COLOURS)) % len(RANK_HATCHES)]


def collective(op: str) -> tuple[str, str]:
    """Glyph and colour of a collective."""
    return COLLECTIVES.get(op, UNKNOWN_COLLECTIVE)


def is_dark(colour: str) -> bool:
    """Whether white lines read better than black ones on this colour (`#rrggbb`)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.55


def hatch_colour(colour: str) -> str:
    """The colour of the hatch lines on a face of this colour (`#rrggbb`)."""
    return "#ffffff" if is_dark(colour) else "#303030"


def pale(colour: str) -> str:
    """The same hue, two thirds of the way to white (`#rrggbb`)."""
    return "#" + "".join(f"{255 - (255 - int(colour[i : i + 2], 16)) // 3:02x}" for i in (1, 3, 5))


def unit_of(largest: int | float) -> tuple[str, int]:
    """The binary unit in which `largest` bytes is written, and its size in bytes."""
    power = 0
    while power + 1 < len(UNITS) and largest >= 1024 ** (power + 1):
        power += 1
    return UNITS[power], 1024**power


def in_binary(count: int | float) -> str:
    """Bytes in a binary unit with three digits: `384 KiB`, `1.5 MiB`, `17 B`."""
    unit, size = unit_of(count)
    value = count / size
    digits = 0 if value >= 100 or size == 1 else 1 if value >= 10 else 2
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def unit_sentence(unit: str) -> str:
    """What a binary unit means, for the foot of a figure: `MiB = 1,048,576 bytes`."""
    return f"{unit} = {1024 ** UNITS.index(unit):,} bytes" if unit != "B" else "B = bytes"
