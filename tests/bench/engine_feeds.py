"""Three ways to generate for the same requests: Stoker's engine as a worker feeds it, and transformers by itself twice.

Each takes a loaded model and requests with `ignore_eos`, and gives the tokens of each. What stays resident in real use
is made before the time is taken.
"""

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from transformers import GenerationConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager

from broker.messages import Request
from broker.records import ClaimedRequest
from gpu_worker.engine import continuous
from gpu_worker.engine.loop_options import default_options
from gpu_worker.engine.transformers import TransformersEngine
from gpu_worker.engine_loop import EngineLoop
from gpu_worker.inbox import Inbox

BATCHES = 4
_NO_END = -1

Tokens = list[tuple[int, ...]]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one way of feeding gave, and in how many seconds of the clock and of CPU (all threads)."""

    tokens: Tokens
    wall_s: float
    cpu_s: float

    @property
    def count(self) -> int:
        """Generated tokens."""
        return sum(map(len, self.tokens))


class _Timer:
    def __enter__(self) -> "_Timer":
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s, self.cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s

    def run(self, tokens: Tokens) -> Run:
        return Run(tokens=tokens, wall_s=self.wall_s, cpu_s=self.cpu_s)


def through_the_engine(loaded: Any, requests: Sequence[Request]) -> Run:
    """Four batches at once, each from a thread of its own, through the loop that a worker has."""
    engine = TransformersEngine(loaded.model, loaded.tokenizer)
    engine.warm_up()
    died: list[BaseException] = []
    loop = EngineLoop(engine, 64, died.append)
    loop.start()
    found: dict[int, tuple[int, ...]] = {}
    batches = [range(first, len(requests), BATCHES) for first in range(BATCHES)]
    threads = [threading.Thread(target=_one_batch, args=(loop, batch, requests, found)) for batch in batches]
    with _Timer() as timer:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    loop.stop()
    if died:
        raise died[0]
    return timer.run([found[place] for place in range(len(requests))])


def _one_batch(loop: EngineLoop, batch: range, requests: Sequence[Request], found: dict[int, tuple[int, ...]]) -> None:
    inbox = Inbox()
    loop.submit(str(batch.start), [ClaimedRequest(index=place, request=requests[place]) for place in batch], inbox)
    missing = len(batch)
    while missing:
        completed = inbox.take(60.0).completed
        missing -= len(completed)
        for place, completion in completed.items():
            if completion.error is not None:
                raise RuntimeError(completion.error.message)
            found[place] = completion.token_ids


def through_the_manager(loaded: Any, requests: Sequence[Request]) -> Run:
    """All requests at once to transformers' own manager, with the options of the engine."""
    with _manager(loaded.model) as manager, _Timer() as timer:
        for place, request in enumerate(requests):
            manager.add_request(
                list(request.input_ids or ()), request_id=str(place), max_new_tokens=request.params.max_tokens
            )
        found: dict[str, tuple[int, ...]] = {}
        while len(found) < len(requests):
            output = manager.get_result(timeout=60.0)
            if output is None or output.error is not None:
                raise RuntimeError(output.error if output is not None else "nothing came within 60 s")
            found[output.request_id] = tuple(output.generated_tokens)
    return timer.run([found[str(place)] for place in range(len(requests))])


@contextmanager
def _manager(model: Any) -> Generator[ContinuousBatchingManager]:
    options = default_options(model)
    manager = ContinuousBatchingManager(
        model=model,
        generation_config=GenerationConfig(do_sample=False, eos_token_id=_NO_END),
        continuous_batching_config=continuous.loop_config(options, on_cpu=model.device.type == "cpu"),
    )
    with torch.inference_mode():
        manager.warmup()
        manager.start()
        manager.add_request([0], request_id="warm-up", max_new_tokens=4)
        manager.get_result(timeout=60.0)
        try:
            yield manager
        finally:
            manager.stop(block=True, timeout=30.0)


def through_generate(loaded: Any, requests: Sequence[Request], batch_size: int) -> Run:
    """Static batches of requests whose prompts are about equally long, padded on the left."""
    by_length = sorted(range(len(requests)), key=lambda place: len(requests[place].input_ids or ()))
    found: dict[int, tuple[int, ...]] = {}
    with _Timer() as timer:
        for first in range(0, len(by_length), batch_size):
            places = by_length[first : first + batch_size]
            for place, row in zip(places, _generate(loaded, [requests[place] for place in places]), strict=True):
                found[place] = tuple(row[: requests[place].params.max_tokens])
    return timer.run([found[place] for place in range(len(requests))])


def _generate(loaded: Any, requests: Sequence[Request]) -> list[list[int]]:
    prompts = [list(request.input_ids or ()) for request in requests]
    width = max(map(len, prompts))
    inputs = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=loaded.model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=loaded.model.device)
    most = max(request.params.max_tokens for request in requests)
    config = GenerationConfig(do_sample=False, max_new_tokens=most, eos_token_id=_NO_END, pad_token_id=0)
    with torch.inference_mode():
        rows = loaded.model.generate(input_ids=inputs, attention_mask=mask, generation_config=config)
    return rows[:, width:].tolist()
