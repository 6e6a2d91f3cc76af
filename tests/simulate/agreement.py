"""Whether two runs of the mix agree: when each job ends, and what it has while all of its class compete. Pure."""

from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec

from tests.simulate.mix import MIX, End

MOST = 0.9
PLACES = range(len(MIX))
PRIORITIES = sorted({job.priority for job in MIX}, reverse=True)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a job, or a user, has of the tokens of a class in both runs, of 1."""

    name: str
    priority: int
    simulated: float
    real: float

    @property
    def difference(self) -> float:
        """How far apart they are."""
        return abs(self.simulated - self.real)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How the real run compares with the simulated one. Jobs are given by their names."""

    simulated_s: float  # until all was done
    real_s: float
    simulated_order: tuple[str, ...]
    real_order: tuple[str, ...]
    swapped: tuple[tuple[str, str], ...]  # end in another order, though the simulation has them clearly apart
    rank_correlation: float  # Spearman's, of the ends: 1 for the same order
    too_early: tuple[str, ...]  # real jobs that were half done before most of the higher classes was
    jobs: tuple[Share, ...]
    users: tuple[Share, ...]


def compare(simulated: Sequence[End], real: Sequence[End], *, clearly: float) -> Agreement:
    """Compare two runs; jobs whose ends are `clearly` (of the whole time) apart must end in the same order."""
    expected, found = _last(simulated), _last(real)
    return Agreement(
        simulated_s=max(expected),
        real_s=max(found),
        simulated_order=_names(_order(expected)),
        real_order=_names(_order(found)),
        swapped=tuple(_swapped(expected, found, clearly * max(expected))),
        rank_correlation=_rank_correlation(_order(expected), _order(found)),
        too_early=_names(_too_early(real)),
        jobs=tuple(_shares(simulated, real, [job.name for job in MIX])),
        users=tuple(_shares(simulated, real, [job.user for job in MIX])),
    )


def _last(ends: Iterable[End]) -> list[float]:
    """When each job was done."""
    last = [0.0] * len(MIX)
    for end in ends:
        last[end.job] = max(last[end.job], end.at_s)
    return last


def _order(last: Sequence[float]) -> list[int]:
    return sorted(PLACES, key=lambda job: last[job])


def _names(jobs: Iterable[int]) -> tuple[str, ...]:
    return tuple(MIX[job].name for job in jobs)


def _swapped(expected: Sequence[float], found: Sequence[float], apart_s: float) -> Iterable[tuple[str, str]]:
    for one, other in combinations(_order(expected), 2):
        if expected[other] - expected[one] > apart_s and found[other] <= found[one]:
            yield MIX[one].name, MIX[other].name


def _rank_correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Spearman's, of two orders of the same things."""
    count = len(one)
    apart = sum((place - other.index(job)) ** 2 for place, job in enumerate(one))
    return 1 - 6 * apart / (count * (count**2 - 1))


def _too_early(ends: Sequence[End]) -> Iterable[int]:
    """What a higher class has running when it waits no more may well end after the first of a lower one."""
    for place, job in enumerate(MIX):
        higher = sorted(end.at_s for end in ends if MIX[end.job].priority > job.priority)
        mine = sorted(end.at_s for end in ends if end.job == place)
        if higher and mine[len(mine) // 2] < higher[int(MOST * len(higher))]:
            yield place


def _shares(simulated: Sequence[End], real: Sequence[End], names: Sequence[str]) -> Iterable[Share]:
    """Of each class, what each has until the first job of the class is done; `names` says who each job is."""
    for priority in PRIORITIES:
        expected, found = _had(simulated, priority, names), _had(real, priority, names)
        for name in sorted(expected):
            yield Share(
                name=name,
                priority=priority,
                simulated=expected[name] / sum(expected.values()),
                real=found[name] / sum(found.values()),
            )


def _had(ends: Sequence[End], priority: int, names: Sequence[str]) -> dict[str, int]:
    members = [place for place in PLACES if MIX[place].priority == priority]
    last = _last(ends)
    until_s = min(last[member] for member in members)
    had = {names[member]: 0 for member in members}
    for end in ends:
        if MIX[end.job].priority == priority and end.at_s <= until_s:
            had[names[end.job]] += end.tokens
    return had
