"""The letters of decks and pages: Inter, and DejaVu for code and for what Inter lacks; and how wide text is in them."""

from __future__ import annotations

import io
from base64 import b64encode
from functools import cache
from pathlib import Path

import matplotlib
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

ASSETS = Path(__file__).parent / "assets"
INTER = (("inter-400.woff", 400, "normal"), ("inter-400-italic.woff", 400, "italic"), ("inter-600.woff", 600, "normal"))
DEJAVU = (("DejaVu Sans", "DejaVuSans.ttf", 400), ("DejaVu Sans Mono", "DejaVuSansMono.ttf", 400))

MATHEMATICS = "noto-sans-math.woff"

# Latin, Greek, punctuation, super- and subscripts, arrows, mathematics, technical signs, box drawing, shapes, ticks.
KEPT = ((0x20, 0x17F), (0x370, 0x3FF), (0x2000, 0x22FF), (0x2300, 0x23FF), (0x2500, 0x25FF), (0x2700, 0x27BF))
FORMULA = (
    (0x20, 0x7E),
    (0xA0, 0xFF),
    (0x391, 0x3F6),
    (0x2010, 0x22FF),
    (0x2308, 0x230B),
    (0x27E6, 0x27EB),
    (0x1D400, 0x1D7FF),
)

MONO_EM = 0.602
"""Width of every letter of DejaVu Sans Mono, in multiples of the letter size."""


def width(text: str, bold: bool = False) -> float:
    """Width of a text in Inter, in multiples of the letter size."""
    advances = _advances("inter-600.woff" if bold else "inter-400.woff")
    return sum(advances.get(letter, 0.75) for letter in text)  # 0.75: of what Inter lacks, DejaVu is a bit wider


@cache
def css(mathematics: bool) -> str:
    """The rules that put all letters into a page, as data; those of formulas only where there are some."""
    inter = (_face("Inter", (ASSETS / file).read_bytes(), weight, style) for file, weight, style in INTER)
    ttf = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    dejavu = (_face(family, _subset(ttf / file, KEPT), weight, "normal") for family, file, weight in DEJAVU)
    formulas = [_face("Noto Sans Math", _subset(ASSETS / MATHEMATICS, FORMULA), 400, "normal")] if mathematics else []
    return "\n".join([*inter, *dejavu, *formulas])


def _face(family: str, data: bytes, weight: int, style: str) -> str:
    source = f"url(data:font/woff;base64,{b64encode(data).decode('ascii')}) format('woff')"
    return f"@font-face {{ font-family: '{family}'; font-weight: {weight}; font-style: {style}; src: {source}; }}"


@cache
def _advances(file: str) -> dict[str, float]:
    font = TTFont(ASSETS / file)
    units = font["head"].unitsPerEm
    return {chr(code): font["hmtx"][glyph][0] / units for code, glyph in font.getBestCmap().items()}


def _subset(path: Path, kept: tuple[tuple[int, int], ...]) -> bytes:
    """A font with the letters that are kept, and its table for mathematics."""
    font = TTFont(path)
    subsetter = Subsetter(Options(layout_features=[], drop_tables=["FFTM", "GSUB", "GPOS", "GDEF"]))
    subsetter.populate(unicodes=[code for first, last in kept for code in range(first, last + 1)])
    subsetter.subset(font)
    font.flavor = "woff"
    buffer = io.BytesIO()
    font.save(buffer)
    return buffer.getvalue()
