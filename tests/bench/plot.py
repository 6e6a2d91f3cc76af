"""A comparison as a drawing: a bar a contender, its median on a logarithmic scale, and a line over the range."""

import math
from html import escape

from tests.bench.comparison import Comparison, Result
from tests.bench.summary import Summary
from tests.bench.table import number

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 760, 250, 130, 34, 26, 16
STOKER_COLOUR, PEER_COLOUR, RANGE_COLOUR = "#1b7837", "#a6dba0", "#333"


def bars(comparison: Comparison, metric: str, title: str) -> str:
    """An SVG of the contenders that have this figure, in their order. Bars begin at a power of ten."""
    found = [(result, summary) for result in comparison.results if (summary := result.summary(metric))]
    drawn = [(result, summary) for result, summary in found if summary.low > 0]
    height = TOP + ROW * len(drawn) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="12">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="10" y="20" font-weight="bold">{escape(title)}, logarithmic</text>',
    ]
    if drawn:
        low, high = bounds([summary for _, summary in drawn])
        for place, (result, summary) in enumerate(drawn):
            lines += _row(result, summary, TOP + ROW * place, low, high, is_stoker=result is comparison.stoker)
    return "\n".join([*lines, "</svg>", ""])


def bounds(summaries: list[Summary]) -> tuple[float, float]:
    """The scale's ends: the power of ten below the least value, and the greatest value."""
    low = 10.0 ** (math.ceil(math.log10(min(summary.low for summary in summaries))) - 1)
    return low, max(summary.high for summary in summaries)


def position(value: float, low: float, high: float) -> float:
    """Where a value is between the ends, in pixels from the left edge."""
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)


def _row(result: Result, summary: Summary, top: int, low: float, high: float, *, is_stoker: bool) -> list[str]:
    middle, base = top + BAR / 2, top + BAR - 4
    end, first, last = (position(value, low, high) for value in (summary.median, summary.low, summary.high))
    colour = STOKER_COLOUR if is_stoker else PEER_COLOUR
    return [
        f'<text x="10" y="{base}">{escape(result.name.replace("`", ""))}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{end - LEFT:.0f}" height="{BAR}" fill="{colour}"/>',
        f'<line x1="{first:.0f}" y1="{middle}" x2="{last:.0f}" y2="{middle}" stroke="{RANGE_COLOUR}"/>',
        f'<text x="{max(end, last) + 6:.0f}" y="{base}">{number(summary.median)}</text>',
    ]
