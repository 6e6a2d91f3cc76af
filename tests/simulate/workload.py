"""What is asked for: jobs of requests whose lengths were measured."""

import json
import random
from pathlib import Path

import msgspec

LENGTHS = tuple(
    (int(prompt), int(output))
    for prompt, output in json.loads(Path(__file__).with_name("lengths.json").read_text("utf-8"))
)
MAX_TOKENS = 256


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of `count` requests that arrives at `at_s`."""

    count: int
    at_s: float = 0.0
    priority: int = 0
    user: str = ""
    weight: float = 1.0
    deadline_s: float = 0.0


def lengths_of(job: int, count: int) -> list[tuple[int, int]]:
    """Prompt and output tokens of a job's requests; the same every time."""
    return random.Random(job).choices(LENGTHS, k=count)
