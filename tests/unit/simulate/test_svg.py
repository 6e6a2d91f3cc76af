from xml.etree import ElementTree

import pytest

from tests.simulate.svg import Bar, Line, bars, lines

SVG = "{http://www.w3.org/2000/svg}"


def elements(text, kind):
    return list(ElementTree.fromstring(text).iter(f"{SVG}{kind}"))


def texts(drawing):
    return [item.text for item in elements(drawing, "text")]


def bar(value):
    return Bar(value=value, text=f"{value} s", colour="#000")


def test_bars_are_as_long_as_what_they_show_beyond_their_start():
    drawing = bars("a < b", [("one", [bar(1.5), bar(2.0)]), ("two", [bar(3.0)])], start=1.0)
    widths = [float(item.get("width")) for item in elements(drawing, "rect")[1:]]
    assert widths == [pytest.approx(widths[2] / 4, abs=1), pytest.approx(widths[2] / 2, abs=1), widths[2]]
    assert texts(drawing) == ["a < b", "one", "1.5 s", "2.0 s", "two", "3.0 s"]


def points(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def test_a_line_goes_from_the_left_to_the_right_and_up_to_the_greatest():
    line = Line(name="x", colour="#000", points=((0.0, 0.0), (5.0, 0.5), (10.0, 1.0)))
    (left, middle, right) = points(elements(lines("t", [line], x_name="s", y_most=1.0), "polyline")[0])
    assert left[0] < middle[0] < right[0]
    assert middle[0] == pytest.approx((left[0] + right[0]) / 2)
    assert middle[1] == pytest.approx((left[1] + right[1]) / 2)
    assert right[1] < left[1]


def test_where_nothing_is_known_there_is_no_line():
    line = Line(name="x", colour="#000", points=((0, None), (1, 0.5), (2, 0.5), (3, None), (4, 0.5), (5, 0.5)))
    assert [len(points(piece)) for piece in elements(lines("t", [line], x_name="s", y_most=1), "polyline")] == [2, 2]


@pytest.mark.parametrize("most", [0.9, 1, 8, 10, 79.7, 104.2, 1999])
def test_an_axis_has_a_few_round_numbers(most):
    line = Line(name="x", colour="#000", points=((0, 0), (most, 1)))
    numbers = [float(text) for text in texts(lines("t", [line], x_name="s", y_most=1))[1:] if text not in ("s", "x")]
    ticks = numbers[numbers.index(0, 1) :]
    assert 4 <= len(ticks) <= 9
    assert ticks[-1] <= most < ticks[-1] + ticks[1]
