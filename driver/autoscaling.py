"""How many workers are wanted, from what there is to do and how fast they do it. Pure.

Wanted is what drains all work within a target time. More is wanted at once; less only when less would have done, with
some headroom, for a whole cooldown, so that neither noise nor a short pause stops a worker that is needed again. Work
that grows steadily is met ahead of time: by when workers that are started now can be ready. No fewer are wanted than
are in use on the average: where work is done as fast as it comes, little waits, and they are needed all the same.
Workers that sleep come on top: they are there, and somebody else has to do the work.
"""

from collections.abc import Sequence
from math import ceil, exp, inf

import msgspec

HEADROOM = 0.25  # noise of up to 11 % either way never makes the number go up and down
GROWTH_DEADBAND = 0.5  # growth within half a window, as a share of the work, that may be noise
SAMPLES = 60  # of the trend: more are thinned out
HALF_SAMPLES = 3  # fewer in half a window say nothing
LEAST_USE = 0.05  # of one worker, below which nothing is in use: an average never comes to nothing
GAP_S = 10.0  # a driver that looks every second or so does not pause so long


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do, in tokens still to generate, and who does it."""

    pending_tokens: float = 0.0
    inflight_tokens: float = 0.0
    pending_requests: int = 0
    ready: int = 0  # workers that take work
    coming: int = 0  # workers that load their model
    asleep: int = 0  # workers that people have put to sleep: they hold a place and do nothing
    tokens_per_s: float = 0.0  # of one worker with all the work that it can take; 0 while unknown
    used_tokens_per_s: float = 0.0  # of all workers together, now
    startup_s: float = 0.0  # from the start of a worker until it is ready

    @property
    def tokens(self) -> float:
        """All work."""
        return self.pending_tokens + self.inflight_tokens

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do at all."""
        return self.tokens <= 0 and self.pending_requests == 0


class ScaleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the number of workers, and times in seconds."""

    least: int
    most: int
    drain_target_s: float = 60.0
    cooldown_s: float = 120.0
    trend_window_s: float = 60.0


class Point(msgspec.Struct, frozen=True):
    """A value at a time."""

    at_s: float
    value: float


class ScaleState(msgspec.Struct, frozen=True, kw_only=True):
    """What the next decision remembers of the ones before."""

    wanted: int
    since_s: float  # without a gap, from when on the load is known
    seen_s: float
    used_tokens_per_s: float = 0.0  # on the average of about the trend's window
    work: tuple[Point, ...] = ()  # tokens, within the trend's window
    needs: tuple[Point, ...] = ()  # workers, within the cooldown: only those that no later one exceeds


def start(wanted: int, now_s: float) -> ScaleState:
    """The state of somebody who begins to decide while so many workers are there."""
    return ScaleState(wanted=wanted, since_s=now_s, seen_s=now_s)


def decide(load: Load, state: ScaleState, limits: ScaleLimits, now_s: float) -> ScaleState:
    """The next state, with the number of workers wanted now."""
    if now_s - state.seen_s > max(GAP_S, limits.cooldown_s / 2):
        state = start(state.wanted, now_s)  # nobody looked for long: what was seen before says nothing
    work = _remember(state.work, Point(now_s, load.tokens), limits.trend_window_s)
    used = _average(state, load, now_s, limits.trend_window_s)
    need = _need(load, limits, growth(work, limits.trend_window_s, load.startup_s))
    awake = max(0, state.wanted - load.asleep)
    need = max(need, min(_used(load, used), awake))  # what is used keeps workers; only work asks for more
    needs = (*(p for p in _within(state.needs, now_s, limits.cooldown_s) if p.value > need), Point(now_s, need))
    wanted = load.asleep + _settle(awake, needs, is_cool=now_s - state.since_s >= limits.cooldown_s)
    return ScaleState(
        wanted=min(max(wanted, limits.least), limits.most),
        since_s=state.since_s,
        seen_s=now_s,
        used_tokens_per_s=used,
        work=work,
        needs=needs,
    )


def growth(work: Sequence[Point], window_s: float, ahead_s: float) -> float:
    """By how many tokens the work will have grown in `ahead_s` seconds, if it grows as it did all through the window.

    The growth of the slower half of the window counts: a large job is a step in one half, and no trend.
    """
    half_s = window_s / 2
    middle_s = work[-1].at_s - half_s
    halves = [p for p in work if p.at_s <= middle_s], [p for p in work if p.at_s > middle_s]
    if any(len(half) < HALF_SAMPLES for half in halves) or work[-1].at_s - work[0].at_s < 0.75 * window_s:
        return 0.0
    rise = min(_slope(half) for half in halves) * half_s
    mean = sum(p.value for p in work) / len(work)
    return max(0.0, rise - GROWTH_DEADBAND * mean) * min(ahead_s / half_s, 2.0)


def _need(load: Load, limits: ScaleLimits, grown: float) -> float:
    """Workers that are needed to do all work in time, as a fraction."""
    if load.is_idle:
        return 0.0
    if not load.tokens_per_s:
        return 1.0  # the first worker tells how fast they are
    # Where loading takes longer than the target, a new worker helps only with work that lasts as long as that.
    target_s = max(limits.drain_target_s, load.startup_s)
    need = (load.tokens + grown) / (load.tokens_per_s * target_s)
    # What is in flight stays where it is: every further worker needs a request that waits.
    useful = max(1.0, load.ready + load.pending_requests)
    return min(max(need, 1e-9), useful)


def _used(load: Load, used_tokens_per_s: float) -> float:
    """Workers that are in use: all of them, while there is work and nobody knows how fast they are."""
    if not load.tokens_per_s:
        return 0.0 if load.is_idle else inf
    # Short requests come and go between two looks: that nothing is to be seen does not mean that nothing comes.
    used = used_tokens_per_s / load.tokens_per_s
    return used if used >= LEAST_USE else 0.0


def _settle(wanted: int, needs: Sequence[Point], *, is_cool: bool) -> int:
    """Up to what is needed now; down to what would have done all the time, with headroom."""
    if (now := ceil(needs[-1].value)) > wanted:
        return now
    enough = max(ceil(point.value * (1 + HEADROOM)) for point in needs)
    return min(wanted, enough) if is_cool else wanted


def _average(state: ScaleState, load: Load, now_s: float, window_s: float) -> float:
    """What is in use, smoothed; the number of workers must not follow it from second to second."""
    weight = 1 - exp(-(now_s - state.seen_s) / window_s)
    return state.used_tokens_per_s + weight * (load.used_tokens_per_s - state.used_tokens_per_s)


def _remember(points: tuple[Point, ...], new: Point, window_s: float) -> tuple[Point, ...]:
    kept = _within(points, new.at_s, window_s)
    if len(kept) > 1 and kept[-1].at_s - kept[-2].at_s < window_s / SAMPLES:
        kept = kept[:-1]  # the newest always counts, and stands for the one just before it
    return (*kept, new)


def _within(points: Sequence[Point], now_s: float, seconds: float) -> tuple[Point, ...]:
    return tuple(point for point in points if now_s - point.at_s <= seconds)


def _slope(points: Sequence[Point]) -> float:
    """Of the line that fits best, in units a second."""
    mean_s = sum(p.at_s for p in points) / len(points)
    spread = sum((p.at_s - mean_s) ** 2 for p in points)
    return sum((p.at_s - mean_s) * p.value for p in points) / spread if spread else 0.0
