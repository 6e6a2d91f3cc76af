"""Comparisons as tables for people: medians, and the range of all rounds in brackets."""

from collections.abc import Mapping, Sequence

import msgspec

from tests.bench.comparison import Comparison, Result
from tests.bench.summary import Summary

NOTHING = "-"


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its name in the figures, and what stands above it. With `ratio`, a second column beside it."""

    metric: str
    title: str
    ratio: str = ""  # what stands above Stoker's figure divided by the contender's


def comparison_table(
    comparison: Comparison, columns: Sequence[Column], notes: Mapping[str, str] | None = None, notes_title: str = ""
) -> str:
    """A row a contender; `notes` fill a last column, below `notes_title`. Failures stand in the table."""
    head = [""]
    for column in columns:
        head += [column.title, *([column.ratio] if column.ratio else [])]
    if notes:
        head.append(notes_title)
    rows = [_row(comparison, result, columns, notes) for result in comparison.results]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def spread(summary: Summary | None) -> str:
    """Median and range."""
    if summary is None:
        return NOTHING
    if summary.count == 1:
        return number(summary.median)
    return f"{number(summary.median)} ({number(summary.low)} to {number(summary.high)})"


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if abs(value) >= 1_000:
        digits = 10 ** (len(str(int(abs(value)))) - 3)
        return f"{round(value / digits) * digits:,}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _row(
    comparison: Comparison, result: Result, columns: Sequence[Column], notes: Mapping[str, str] | None
) -> list[str]:
    cells = [result.name]
    for column in columns:
        cells.append(spread(result.summary(column.metric)))
        if column.ratio:
            is_stoker = result is comparison.stoker
            cells.append("1" if is_stoker else spread(comparison.ratio(result.name, column.metric)))
    if result.failures:
        failed = sum(bool(item.failure) for item in result.rounds)
        cells[1] += f" **failed in {failed} of {len(result.rounds)} rounds**: {'; '.join(result.failures)}"
    if notes:
        cells.append(notes.get(result.name, ""))
    return cells
