"""Contenders side by side: all of them in every round, and ratios only within a round.

Each round has another order, so that what else the machine does falls on all. The first contender is Stoker.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tests.bench.contender import Contender
from tests.bench.summary import Summary, summarise

MOST_FAILURES = 2  # then a contender is not run again: five times a time limit is longer than all the rest


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one round: its figures, or why there are none."""

    figures: Mapping[str, float] = {}
    failure: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in all rounds."""

    name: str
    rounds: tuple[Round, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """Why rounds have no figures; each reason once."""
        return tuple(dict.fromkeys(item.failure for item in self.rounds if item.failure))

    def summary(self, metric: str) -> Summary | None:
        """Over the rounds that have this figure; None when no round has."""
        values = [item.figures[metric] for item in self.rounds if metric in item.figures]
        return summarise(values) if values else None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one run has measured, Stoker first."""

    results: tuple[Result, ...]
    load_before: float = 0.0  # load average of the minute before the first round

    @property
    def stoker(self) -> Result:
        """The first contender."""
        return self.results[0]

    @property
    def rounds(self) -> int:
        """Of each contender."""
        return len(self.stoker.rounds)

    @property
    def failures(self) -> tuple[str, ...]:
        """Of all contenders, with their names."""
        return tuple(f"{result.name}: {failure}" for result in self.results for failure in result.failures)

    def result(self, name: str) -> Result:
        """Of the contender with this name."""
        return next(result for result in self.results if result.name == name)

    def ratio(self, name: str, metric: str) -> Summary | None:
        """Stoker's figure divided by this contender's, over the rounds that have both (and no division by 0)."""
        pairs = zip(self.stoker.rounds, self.result(name).rounds, strict=True)
        ratios = [
            mine.figures[metric] / other.figures[metric]
            for mine, other in pairs
            if metric in mine.figures and other.figures.get(metric)
        ]
        return summarise(ratios) if ratios else None


def compare(contenders: Sequence[Contender], rounds: int, say: Callable[[str], None] = print) -> Comparison:
    """Measure every contender once a round; `say` is told of each measurement as it ends."""
    load_before = os.getloadavg()[0]
    found: dict[str, list[Round]] = {contender.name: [] for contender in contenders}
    for number in range(rounds):
        for contender in turned(contenders, number):
            so_far = found[contender.name]
            so_far.append(_measure(contender, so_far))
            say(f"  round {number + 1} of {rounds}: {contender.name}: {_shown(so_far[-1])}")
    results = tuple(Result(name=name, rounds=tuple(items)) for name, items in found.items())
    return Comparison(results=results, load_before=load_before)


def turned(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """The order of a round: each begins with the next contender."""
    turn = number % len(contenders)
    return [*contenders[turn:], *contenders[:turn]]


def _measure(contender: Contender, so_far: Sequence[Round]) -> Round:
    if sum(bool(item.failure) for item in so_far) >= MOST_FAILURES:
        return Round(failure="not run again")
    try:
        figures = {metric: float(value) for metric, value in contender.measure().items()}
    except Exception as error:  # whatever it is, the table says so, and the others are measured
        return Round(failure=_reason(error))
    wrong = [metric for metric, value in figures.items() if not (math.isfinite(value) and value >= 0)]
    if wrong or not figures:
        return Round(failure=f"gave no figure for {', '.join(wrong) or 'anything'}")
    return Round(figures=figures)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _shown(item: Round) -> str:
    return item.failure or ", ".join(f"{metric} {value:.4g}" for metric, value in item.figures.items())
