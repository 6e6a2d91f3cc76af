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
LAST = 0.05  # of a job's requests are its end


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of `count` requests that arrives at `at_s`.

    Their prompt and output tokens are `lengths`, and `max_tokens` then is what each will have, unless it is `most`;
    without lengths, both are drawn.
    """

    count: int
    at_s: float = 0.0
    priority: int = 0
    user: str = ""
    weight: float = 1.0
    deadline_s: float = 0.0
    end_sorted: bool = False  # its last requests come by the length that they will have, which nobody can know
    seed: int = 0
    lengths: tuple[tuple[int, int], ...] = ()
    most: int = 0

    def most_tokens(self, index: int) -> int:
        """`max_tokens` of a request."""
        return self.lengths[index][1] if self.lengths and not self.most else self.most or MAX_TOKENS


def lengths_of(number: int, job: SimulatedJob) -> list[tuple[int, int]]:
    """Prompt and output tokens of a job's requests; the same every time."""
    if job.lengths:
        return list(job.lengths)
    drawn = random.Random(number + 1000 * job.seed).choices(LENGTHS, k=job.count)
    last = int(job.count * LAST) if job.end_sorted else 0
    return drawn[: job.count - last] + sorted(drawn[job.count - last :], key=lambda length: -length[1])
