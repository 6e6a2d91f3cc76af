"""Drawings: every contender that was measured has a bar of its length."""

from xml.etree import ElementTree

import pytest

from tests.bench.comparison import Comparison, Result, Round
from tests.bench.plot import LEFT, RIGHT, WIDTH, bars, bounds, position
from tests.bench.summary import summarise

SVG = "{http://www.w3.org/2000/svg}"


def drawn(**values):
    results = tuple(
        Result(name=name, rounds=tuple(Round(figures={"m": value}) for value in found))
        for name, found in values.items()
    )
    root = ElementTree.fromstring(bars(Comparison(results=results), "m", "a < b"))
    texts = [item.text for item in root.iter(f"{SVG}text")]
    widths = [float(item.get("width")) for item in list(root.iter(f"{SVG}rect"))[1:]]  # the first is the ground
    return texts, widths


def test_bars_are_as_long_as_the_logarithms_of_the_medians():
    texts, widths = drawn(Stoker=[1_000], other=[100], third=[10])
    assert widths[0] == WIDTH - LEFT - RIGHT
    assert widths[1] == pytest.approx(widths[0] * 2 / 3, abs=1)
    assert widths[2] == pytest.approx(widths[0] / 3, abs=1)
    assert texts == ["a < b, logarithmic", "Stoker", "1,000", "other", "100", "third", "10.0"]


def test_who_has_no_figure_has_no_bar():
    texts, widths = drawn(Stoker=[5, 7], broken=[])
    assert len(widths) == 1
    assert "broken" not in texts


def test_nothing_measured_is_an_empty_drawing():
    assert drawn(Stoker=[])[1] == []


def test_the_scale_begins_below_the_least_and_ends_at_the_greatest():
    assert bounds([summarise([517, 600]), summarise([24_900])]) == (100, 24_900)
    assert position(100, 100, 24_900) == LEFT
    assert position(24_900, 100, 24_900) == WIDTH - RIGHT
