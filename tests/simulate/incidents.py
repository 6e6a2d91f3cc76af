"""What happens to GPUs beside their work, and what speed that leaves."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What happens to a GPU."""

    DEATH = "death"  # its worker crashes, and is back after a while
    SLOW = "slow"  # each request goes slower (or faster) from now on: heat, or somebody else on the device
    DRAIN = "drain"  # it is asked to end what it has, and leaves
    JOIN = "join"  # it was not there before


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens to a GPU, by number; `speed` is what is left of its speed, as a part of 1."""

    at_s: float
    gpu: int
    kind: Kind
    speed: float = 1.0


class Speed:
    """Tokens per second of all GPUs together with all slots in use, over time."""

    def __init__(self, steps: Iterable[tuple[float, float]]) -> None:
        """`steps` are (from which second, tokens per second), in their order, from 0 on."""
        self._steps = tuple(steps)

    def tokens_until(self, end_s: float) -> float:
        """Tokens that could have been generated until then."""
        ends = [*(at_s for at_s, _ in self._steps[1:]), float("inf")]
        return sum(
            (min(end_s, until_s) - at_s) * speed
            for (at_s, speed), until_s in zip(self._steps, ends, strict=True)
            if at_s < end_s
        )

    def tokens_between(self, start_s: float, end_s: float) -> float:
        """Tokens that could have been generated from one time to another."""
        return self.tokens_until(end_s) - self.tokens_until(start_s)

    def time_for(self, tokens: float) -> float:
        """When so many tokens can be generated at the soonest."""
        at_s, speed = max(step for step in self._steps if step[0] == 0 or self.tokens_until(step[0]) < tokens)
        return at_s + (tokens - self.tokens_until(at_s)) / speed


def speed_over_time(speeds: Sequence[float], incidents: Iterable[Incident]) -> Speed:
    """Of GPUs of these speeds. Who drains counts as gone at once; deaths do not count, as nobody plans for them."""
    incidents = sorted(incidents, key=lambda item: item.at_s)
    joining = {item.gpu for item in incidents if item.kind is Kind.JOIN}
    now = [0.0 if gpu in joining else speed for gpu, speed in enumerate(speeds)]
    steps = [(0.0, sum(now))]
    for item in incidents:
        if item.kind is Kind.JOIN:
            now[item.gpu] = speeds[item.gpu]
        elif item.kind is Kind.SLOW:
            now[item.gpu] *= item.speed
        elif item.kind is Kind.DRAIN:
            now[item.gpu] = 0.0
        else:
            continue
        steps.append((item.at_s, sum(now)))
    return Speed(steps)
