"""Charts as small SVG files that can be read as text: bars side by side, and lines over time. No dependency."""

import math
from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape

import msgspec

WIDTH = 640
BAR = 16
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 34, 44  # of a chart with lines


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar and what is written behind it."""

    value: float
    text: str
    colour: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Points from left to right; a gap is a point of which nothing is known."""

    name: str
    colour: str
    points: tuple[tuple[float, float | None], ...]


def bars(title: str, groups: Sequence[tuple[str, Sequence[Bar]]], *, start: float = 0.0) -> str:
    """Groups of bars, each with its name; a bar of the value `start` has no length."""
    most = max(bar.value for _, group in groups for bar in group)
    left, scale = 190, (WIDTH - 190 - 170) / max(most - start, 1e-9)
    body: list[str] = [_text(10, 20, title, weight="bold")]
    y = 36
    for name, group in groups:
        body.append(_text(10, y + 12 + (len(group) - 1) * 10, name))
        for bar in group:
            length = max(scale * (bar.value - start), 1)
            body.append(f'<rect x="{left}" y="{y}" width="{length:.0f}" height="{BAR}" fill="{bar.colour}"/>')
            body.append(_text(left + length + 6, y + 12, bar.text))
            y += BAR + 4
        y += 12
    return _document(title, y + 2, body)


def lines(title: str, series: Sequence[Line], *, x_name: str, y_most: float, height: int = 280) -> str:
    """Lines over one x axis from 0 on, and a y axis from 0 to `y_most`."""
    x_most = max(x for line in series for x, _ in line.points)
    wide, high = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + wide * x / x_most, TOP + high * (1 - min(y / y_most, 1.0))

    body: list[str] = [_text(10, 20, title, weight="bold")]
    for tick in _ticks(y_most):
        _, y = place(0, tick)
        body += [_rule(LEFT, y, LEFT + wide, y, "#ddd"), _text(LEFT - 6, y + 4, f"{tick:g}", anchor="end")]
    for tick in _ticks(x_most):
        x, y = place(tick, 0)
        body += [_rule(x, y, x, y + 4, "#444"), _text(x, y + 17, f"{tick:g}", anchor="middle")]
    body += [_rule(LEFT, TOP + high, LEFT + wide, TOP + high, "#444"), _rule(LEFT, TOP, LEFT, TOP + high, "#444")]
    body += [_text(LEFT + wide / 2, height - 8, x_name, anchor="middle")]
    for number, line in enumerate(series):
        body += [_path(piece, line.colour) for piece in _pieces(line, place)]
        y = TOP + 14 + 18 * number
        body.append(f'<rect x="{LEFT + wide + 12}" y="{y - 8}" width="14" height="4" fill="{line.colour}"/>')
        body.append(_text(LEFT + wide + 32, y - 1, line.name))
    return _document(title, height, body)


def _pieces(line: Line, place: Callable[[float, float], tuple[float, float]]) -> Iterable[list[tuple[float, float]]]:
    piece: list[tuple[float, float]] = []
    for x, y in line.points:
        if y is not None:
            piece.append(place(x, y))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _ticks(most: float) -> list[float]:
    """From 0 to at most `most`, in four to eight round steps."""
    power = 10.0 ** math.floor(math.log10(most))
    step = next(part * power for part in (0.1, 0.2, 0.5, 1.0, 2.0) if most / (part * power) <= 8)
    return [step * place for place in range(int(most / step + 1e-9) + 1)]


def _path(points: Sequence[tuple[float, float]], colour: str) -> str:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    more = "" if anchor == "start" else f' text-anchor="{anchor}"'
    more += "" if weight == "normal" else f' font-weight="{weight}"'
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(text)}</text>'


def _document(title: str, height: int, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12">\n<title>{escape(title)}</title>\n<rect width="100%" height="100%" fill="#fff"/>\n'
    )
    return head + "\n".join(body) + "\n</svg>\n"
