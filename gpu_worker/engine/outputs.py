"""From what the loops say to completions.

A loop's outputs come from its own thread through a queue, and so does what others have for `step`: one wait is enough.
Only `wait` and what puts something into the queue may be called without the engine's lock.
"""

import queue
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from gpu_worker.engine.base import Completion
from gpu_worker.engine.book import Book, Held
from gpu_worker.engine.completions import completion_of, failure
from gpu_worker.engine.errors import ENGINE_ERROR
from gpu_worker.engine.logprobs import token_logprobs
from gpu_worker.engine.prompts import PromptReader
from gpu_worker.engine.resident import ResidentLoop

Event = GenerationOutput | Completion | None  # None only wakes a waiting `step`


class Outputs:
    """Reads the queue that loops write into, and strikes out of the book what has ended."""

    def __init__(self, inbox: "queue.Queue[Any]", book: Book, resident: ResidentLoop, prompts: PromptReader) -> None:
        self._inbox: queue.Queue[Event] = inbox
        self._book = book
        self._resident = resident
        self._prompts = prompts

    def put(self, completions: Iterable[Completion]) -> None:
        """Leave completions for `step` to return: it may be another thread's."""
        for completion in completions:
            self._inbox.put(completion)

    def wake(self) -> None:
        """Let a waiting `step` look."""
        self._inbox.put(None)

    def wait(self, timeout_s: float) -> list[Event]:
        """The next output and those behind it, so that what ends together is returned together."""
        events: list[Event] = []
        try:
            events.append(self._inbox.get(timeout=timeout_s))
            while True:
                events.append(self._inbox.get_nowait())
        except queue.Empty:
            return events

    def read(self, events: Sequence[Event]) -> list[Completion]:
        """The completions among these outputs."""
        read = (self._output(e) if isinstance(e, GenerationOutput) else e for e in events)
        return [completion for completion in read if completion is not None]

    def last_words(self) -> list[Completion]:
        """What a loop had to say until its end, which is in the queue once it is stopped."""
        done = self.read(self.wait(0))
        return done + [self.finish(held) for held in self._book.over]

    def recover(self) -> list[Completion]:
        """Replace a loop that broke, or was stopped to be replaced; returns what has ended with it.

        Raises:
            EngineDeadError: the device is lost, or no new loop can be made.
        """
        self._resident.stop()
        done = self.last_words()
        for given_up in self._resident.recover():
            done.append(failure(given_up.held.request_id, given_up.code, given_up.message))
        return done

    def finish(self, held: Held) -> Completion:
        """Be rid of a request; the completion of what it has."""
        self._resident.drop(held)
        return self.completion(held)

    def completion(self, held: Held) -> Completion:
        """What a request has, as its end."""
        completion = completion_of(
            held.request_id,
            held.request,
            prompt_ids=held.prompt_ids,
            tokens=held.progress,
            ending=held.ending,
            decode=self._prompts.decode,
            settled=held.settled,
        )
        if held.sampling.record is None:
            return completion
        logprobs = token_logprobs(held.sampling.record, len(completion.token_ids), self._prompts.piece)
        return msgspec.structs.replace(completion, logprobs=logprobs)

    def _output(self, output: GenerationOutput) -> Completion | None:
        held = self._book.running(output.request_id)
        if held is None:
            return None  # late: cancelled or stopped meanwhile
        held.note(output.generated_tokens)
        if held.over:
            return self.finish(held)
        if output.status is RequestStatus.FAILED and not self._resident.halted:
            self._resident.drop(held)
            return failure(held.request_id, ENGINE_ERROR, f"generation failed: {output.error}")
        return None
