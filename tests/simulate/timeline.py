"""What a simulation looks like over time: how busy the GPUs are, and what each job is given."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from tests.simulate.incidents import Speed
from tests.simulate.measures import Measures, jain
from tests.simulate.workload import SimulatedJob

SAMPLE_S = 1.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What was done until a time: tokens of all GPUs, those of each job's answers, and each job's open requests."""

    at_s: float
    effort: float
    served: tuple[float, ...]
    left: tuple[int, ...]


class Timeline(Measures):
    """Measures, and a look at them every second."""

    def __init__(self, jobs: Sequence[SimulatedJob], speed: Speed) -> None:
        super().__init__(jobs, speed)
        self._moments = [Moment(at_s=0.0, effort=0.0, served=(0.0,) * len(jobs), left=tuple(self._left))]

    def note_round(self, now_s: float, took_s: float, pending: int, batches: int, effort: float) -> None:
        super().note_round(now_s, took_s, pending, batches, effort)
        if now_s - self._moments[-1].at_s >= SAMPLE_S - 1e-6:
            self._look(now_s, effort)

    def finish(self, now_s: float, effort: float) -> None:
        super().finish(now_s, effort)
        if now_s > self._moments[-1].at_s:
            self._look(now_s, effort)

    def utilisation(self) -> list[tuple[float, float]]:
        """Of the speed of all GPUs with all slots in use, which part was used, second by second."""
        return [
            (after.at_s, (after.effort - before.effort) / self._speed.tokens_between(before.at_s, after.at_s))
            for before, after in pairwise(self._moments)
        ]

    def fairness(self) -> list[tuple[float, float]]:
        """Jain's index of what the jobs have been given so far, as long as all of them wait."""
        return [(moment.at_s, jain(moment.served)) for moment in self._moments[1:] if all(moment.left)]

    def shares(self, job: int, over_s: float) -> list[tuple[float, float | None]]:
        """A job's part of all tokens of the last seconds; None before its arrival and after its end."""
        found: list[tuple[float, float | None]] = []
        for place, moment in enumerate(self._moments[1:], 1):
            before = next(item for item in self._moments[: place + 1] if item.at_s >= moment.at_s - over_s - 1e-6)
            given = [now - then for now, then in zip(moment.served, before.served, strict=True)]
            waits = self._jobs[job].at_s <= moment.at_s and before.left[job] > 0
            found.append((moment.at_s, given[job] / sum(given) if waits and sum(given) else None))
        return found

    def _look(self, now_s: float, effort: float) -> None:
        self._moments.append(Moment(at_s=now_s, effort=effort, served=tuple(self._served), left=tuple(self._left)))
