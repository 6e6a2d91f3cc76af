"""Which idle worker should serve another model, so that the models with most to do have the most workers. Pure.

A model is short of workers when its backlog lasts longer than `least_backlog_s` for those that serve it, or when it has
one and nobody serves it. It gets a worker that has nothing to do, from a model that has no backlog, once it has been
short for a while. A worker that has been moved stays for a while: loading a model costs more than a short queue.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

import msgspec


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a model: requests, and tokens to generate for them."""

    requests: float = 0.0
    tokens: float = 0.0


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is alive, and the model that it serves, or loads."""

    worker: str
    model: str
    is_idle: bool  # ready, and has nothing in hand


class SwitchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be switched, and how patiently; times in seconds.

    `models` are those that any worker may be switched to; a worker that serves another one is left alone.
    """

    models: frozenset[str] = frozenset()
    least_backlog_s: float = 30.0
    hold_s: float = 5.0  # so long a model must have been short
    stay_s: float = 120.0  # so long a worker stays with its new model


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is asked to serve this model, at a time."""

    worker: str
    model: str
    at_s: float


class SwitchState(msgspec.Struct, frozen=True, kw_only=True):
    """What the next decision remembers."""

    short_since_s: Mapping[str, float] = {}
    moves: tuple[Move, ...] = ()  # of the last `stay_s` seconds


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask now, and the state afterwards."""

    moves: tuple[Move, ...]
    state: SwitchState


def decide_switches(
    backlogs: Mapping[str, Waiting],
    workers: Sequence[Serving],
    tokens_per_s: float,
    state: SwitchState,
    limits: SwitchLimits,
    now_s: float,
) -> Switches:
    """The workers to switch now, given each model's backlog and the tokens per second of a worker (0: unknown)."""
    kept = tuple(move for move in state.moves if now_s - move.at_s < limits.stay_s)
    serving = _serving(workers, kept)
    missing = _missing(backlogs, serving, tokens_per_s, limits)
    since_s = {model: state.short_since_s.get(model, now_s) for model in missing}
    due = [model for model in missing if now_s - since_s[model] >= limits.hold_s]
    moves: list[Move] = []
    donors = _donors(backlogs, workers, serving, kept, limits)
    # Who has been short for longest is served first; the name decides between equals.
    for model in sorted(due, key=lambda name: (since_s[name], name)):
        given = donors[: missing[model]]
        moves += [Move(worker=worker.worker, model=model, at_s=now_s) for worker in given]
        donors = donors[missing[model] :]
    return Switches(moves=tuple(moves), state=SwitchState(short_since_s=since_s, moves=(*kept, *moves)))


def _serving(workers: Sequence[Serving], moves: Sequence[Move]) -> dict[str, str]:
    """The model of each worker; that which it was asked for lately, if it does not say so yet."""
    asked = {move.worker: move.model for move in moves}
    return {worker.worker: asked.get(worker.worker, worker.model) for worker in workers}


def _missing(
    backlogs: Mapping[str, Waiting], serving: Mapping[str, str], tokens_per_s: float, limits: SwitchLimits
) -> dict[str, int]:
    """How many workers each model that is short could use more."""
    counts = Counter(serving.values())
    missing: dict[str, int] = {}
    for model in limits.models:
        waiting = backlogs.get(model, Waiting())
        useful = ceil(waiting.tokens / (tokens_per_s * limits.least_backlog_s)) if tokens_per_s else 1
        more = min(useful - counts[model], ceil(waiting.requests))  # a worker without a request does not help
        if more > 0:
            missing[model] = more
    return missing


def _donors(
    backlogs: Mapping[str, Waiting],
    workers: Sequence[Serving],
    serving: Mapping[str, str],
    moves: Sequence[Move],
    limits: SwitchLimits,
) -> list[Serving]:
    """Workers that can be spared: first of the models that have the most."""
    staying = {move.worker for move in moves}
    counts = Counter(serving.values())
    spare = [
        worker
        for worker in workers
        if worker.is_idle
        and worker.worker not in staying
        and worker.model in limits.models
        and not backlogs.get(worker.model, Waiting()).requests > 0
    ]
    return sorted(spare, key=lambda worker: (-counts[worker.model], worker.worker))
