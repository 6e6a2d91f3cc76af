"""Several orders as one, of which only so much is read as is asked for. Pure."""

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import TypeVar

ItemT = TypeVar("ItemT")


def merged(rows: list[Iterator[tuple[ItemT, str]]]) -> Iterable[tuple[ItemT, str]]:
    """Of several rows in order one in order. Mostly there is one: workers serve one model, and jobs name it."""
    return rows[0] if len(rows) == 1 else merge(*rows)


def names(items: Iterable[tuple[object, str]]) -> Iterator[str]:
    """Of what is in order, without what it is ordered by."""
    return (name for _, name in items)


def unique(rows: Iterable[str]) -> Iterator[str]:
    """Each once, where it comes first."""
    seen: set[str] = set()
    for name in rows:
        if name not in seen:
            seen.add(name)
            yield name


def in_turn(rows: Iterable[Iterator[ItemT]]) -> Iterator[ItemT]:
    """The first of each row, then the second of each, and so on; no row is touched before its turn."""
    begun: list[Iterator[ItemT]] = []
    for row in rows:
        for item in row:
            yield item
            begun.append(row)
            break
    while begun:
        left: list[Iterator[ItemT]] = []
        for row in begun:
            for item in row:
                yield item
                left.append(row)
                break
        begun = left
