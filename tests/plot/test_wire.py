"""The wire figure draws three bars a collective, and its words do not flicker."""

from __future__ import annotations

import pandas as pd
import pytest

from tp_teach.plot import wire
from tp_teach.tables import wire_bytes

from .measure import faults, rectangles, texts

OPS = ("all_reduce", "all_gather", "reduce_scatter")


def rows(n=4, extra=1.008):
    size = 4 * 2**20
    found = [{"op": op, "payload_bytes": size, "wire_bytes": wire_bytes(op, size, n)} for op in OPS]
    more = {"reduce_scatter": 2.0}
    return [{**row, "measured_bytes": int(row["wire_bytes"] * more.get(row["op"], 1.0) * extra)} for row in found]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_bars_are_as_long_as_the_bytes(n):
    picture = wire(rows(n))
    assert faults(picture) == []
    bars = rectangles(picture, "bar ")
    pixel = bars["bar 0 payload_bytes"].width / (4 * 2**20)
    for number, row in enumerate(rows(n)):
        for column in ("payload_bytes", "wire_bytes", "measured_bytes"):
            # A pixel of tolerance: the boxes are compared as drawn.
            assert bars[f"bar {number} {column}"].width == pytest.approx(row[column] * pixel, abs=1)


def test_the_alt_text_is_the_same_in_every_run():
    assert wire(rows(extra=1.003)).alt == wire(rows(extra=1.06)).alt
    assert "reduce_scatter: payload 4,194,304 bytes (4 MiB), ring formula 3,145,728 bytes (3 MiB)" in wire(rows()).alt
    assert "counted on the wire about 2 times the formula" in wire(rows()).alt


def test_what_was_not_counted_is_said():
    table = pd.DataFrame(rows())
    table["measured_bytes"] = None
    picture = wire(table)
    assert faults(picture) == []
    assert sum("not counted here" in words for words, _, _ in texts(picture)) == 3
    assert "not counted on the wire" in picture.alt


def test_a_table_that_lacks_something_is_refused():
    with pytest.raises(ValueError, match="no rows; it needs one row a collective with op, payload_bytes, "):
        wire([])
    with pytest.raises(ValueError, match="no column 'measured_bytes'"):
        wire(pd.DataFrame(rows()).drop(columns="measured_bytes"))
