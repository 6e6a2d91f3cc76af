"""What every peer is given when there is no model, what it must give back, and how it says what it measured."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import quantiles

LIST = 64  # requests of one list, where a peer takes lists


def told() -> dict:
    """The JSON object that is this script's argument."""
    return json.loads(sys.argv[1])


def say(figures: Mapping[str, float]) -> None:
    """The last line of output."""
    print(json.dumps(figures), flush=True)


def make_prompts(count: int, size: int = 500) -> list[str]:
    """Prompts of so many bytes that all differ."""
    filling = "lorem ips " * (size // 10 + 1)
    return [f"{number} {filling}"[:size] for number in range(count)]


def in_lists(prompts: Sequence[str], size: int = LIST) -> list[list[str]]:
    """The prompts, so many at a time."""
    return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]


def check(texts: Sequence[str], prompts: Sequence[str]) -> None:
    """Every prompt must have come back, in its place."""
    if list(texts) != list(prompts):
        raise SystemExit(f"{len(texts)} results for {len(prompts)} prompts, or some are wrong")


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}


def latencies(answer: Callable[[str], str], count: int) -> list[float]:
    """Seconds from sending a request to having its result, of so many, one after the other."""
    found: list[float] = []
    for prompt in make_prompts(count):
        started_s = time.perf_counter()
        text = answer(prompt)
        found.append(time.perf_counter() - started_s)
        check([text], [prompt])
    return found


@contextlib.contextmanager
def running(*command: str, **environment: str) -> Iterator[None]:
    """A worker, as a process of its own; what it prints goes where this script's errors go."""
    worker = subprocess.Popen(command, env={**os.environ, **environment}, stdout=sys.stderr, start_new_session=True)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
