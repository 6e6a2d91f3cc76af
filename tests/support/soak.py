"""Many short requests through one engine, and what they leave behind."""

import gc
import random

import msgspec
import psutil

from broker.messages import Request, SamplingParams
from gpu_worker.engine.base import Engine

IN_HAND = 64
SETTLED = 200  # requests after which everything that is made once has been made


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What this process holds."""

    rss_bytes: int
    objects: int  # that Python's collector tracks
    threads: int  # of the operating system
    handles: int


class Soaked(msgspec.Struct, frozen=True, kw_only=True):
    """What the process held once settled, and after all requests."""

    settled: Footprint
    end: Footprint

    @property
    def rss_growth(self) -> float:
        """The part by which memory grew."""
        return self.end.rss_bytes / self.settled.rss_bytes - 1


def footprint() -> Footprint:
    """What this process holds now, garbage excluded."""
    gc.collect()
    process = psutil.Process()
    return Footprint(
        rss_bytes=process.memory_info().rss,
        objects=len(gc.get_objects()),
        threads=process.num_threads(),
        handles=process.num_fds(),
    )


def soak(engine: Engine, count: int, *, prompt_tokens: int, new_tokens: int, vocabulary: int) -> Soaked:
    """Run so many requests of mixed kinds, always some in hand; every tenth is cancelled.

    Raises:
        AssertionError: one ended with an error, or did not end.
    """
    draw = random.Random(5)
    settled = None
    ended = submitted = 0
    while ended < count:
        while submitted < count and submitted - ended < IN_HAND:
            request = _request(draw, prompt_tokens, new_tokens, vocabulary)
            engine.submit(str(submitted), request)
            if submitted % 10 == 9 and engine.cancel(str(submitted)) is not None:
                ended += 1
            submitted += 1
        for completion in engine.step(1.0):
            assert completion.error is None, completion.error
            ended += 1
        if settled is None and ended >= SETTLED:
            settled = footprint()
    assert settled is not None, f"fewer than {SETTLED} requests"
    assert engine.load.running == engine.load.waiting == 0
    return Soaked(settled=settled, end=footprint())


def _request(draw: random.Random, prompt_tokens: int, new_tokens: int, vocabulary: int) -> Request:
    """Greedy, sampled, with a stop string, with penalties, or with log probabilities."""
    kind = draw.choice(
        (
            {"temperature": 0.0},
            {"temperature": 0.8, "top_p": 0.9},
            {"temperature": 0.0, "stop": ("never to be found",)},
            {"temperature": 0.7, "presence_penalty": 0.5, "logit_bias": ((7, 1.0),)},
            {"temperature": 0.0, "logprobs": 2},
        )
    )
    ids = tuple(draw.randrange(5, vocabulary) for _ in range(draw.randint(1, prompt_tokens)))
    return Request(params=SamplingParams(max_tokens=draw.randint(1, new_tokens), **kind), input_ids=ids)
