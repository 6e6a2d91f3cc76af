"""Several texts of one request (`n`) for any engine: each is a request of its own, and they end as one completion."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from broker.commands import Memory
from broker.messages import Choice, FinishReason, Request, Usage
from gpu_worker.engine.base import Capacity, Completion, Engine, Load, Traits
from gpu_worker.engine.choices import join_tokens, single_requests, split_tokens

_PART = "\0"  # in the id of a text, behind its request's


@dataclass(slots=True, kw_only=True, eq=False)
class _Group:
    request_id: str
    part_ids: tuple[str, ...]
    done: dict[str, Completion] = field(default_factory=dict[str, Completion])


class FanOut:
    """Fulfils `Engine` over one that knows single texts only; a request for one text passes through as it is."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._part_of: dict[str, _Group] = {}

    @property
    def traits(self) -> Traits:
        """Those of the engine beneath, which need not know several texts."""
        traits = self._engine.traits
        return msgspec.structs.replace(traits, refuses=traits.refuses - {"n"})

    @property
    def capacity(self) -> Capacity:
        """That of the engine beneath."""
        return self._engine.capacity

    @property
    def load(self) -> Load:
        """That of the engine beneath: each text counts."""
        return self._engine.load

    def warm_up(self) -> None:
        """Warm the engine beneath."""
        self._engine.warm_up()

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; `generated` of several texts is as `generated()` has given it."""
        if request.params.n == 1:
            self._engine.submit(request_id, request, generated=generated)
            return
        parts = single_requests(request)
        before = split_tokens(generated, len(parts))
        group = _Group(request_id=request_id, part_ids=tuple(f"{request_id}{_PART}{i}" for i in range(len(parts))))
        # The engine never calls back, so that its own lock may be taken under this one.
        with self._lock:
            if request_id in self._groups:
                return
            self._groups[request_id] = group
            self._part_of |= dict.fromkeys(group.part_ids, group)
            for part_id, part, tokens in zip(group.part_ids, parts, before, strict=True):
                self._engine.submit(part_id, part, generated=tokens)

    def step(self, timeout_s: float) -> list[Completion]:
        """Let the engine beneath work; texts whose request needs further ones are kept until all are there."""
        done = self._engine.step(timeout_s)
        if not self._groups:  # one that comes now is of later texts than those that are done
            return [completion for completion in done if _PART not in completion.request_id]
        joined = (self._joined(completion) for completion in done)
        return [completion for completion in joined if completion is not None]

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request with all its texts; see `Engine.cancel`."""
        with self._lock:
            group = self._groups.get(request_id)
            if group is None:
                return self._engine.cancel(request_id)
            self._forget(group)
            for part_id in group.part_ids:
                part = group.done.get(part_id) or self._engine.cancel(part_id)
                # One that ended just now is lost on its way here.
                group.done[part_id] = part or Completion(request_id=part_id, finish_reason=FinishReason.LENGTH)
            return _join(group)

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens of all texts of a request so far, as `submit` takes them again."""
        with self._lock:
            group = self._groups.get(request_id)
            if group is None:
                return self._engine.generated(request_id)
            return join_tokens(
                group.done[part_id].token_ids if part_id in group.done else self._engine.generated(part_id)
                for part_id in group.part_ids
            )

    def text(self, request_id: str) -> str:
        """That of the engine beneath: a request for several texts does not stream."""
        return self._engine.text(request_id)

    def not_begun(self) -> tuple[str, ...]:
        """Requests none of whose texts has begun; see `Engine.not_begun`."""
        waiting = self._engine.not_begun()
        with self._lock:
            texts = Counter(waiting_id.partition(_PART)[0] for waiting_id in waiting)
            begun = {name for name, group in self._groups.items() if texts[name] < len(group.part_ids)}
        return tuple(name for name in texts if name not in begun)

    @property
    def model(self) -> Any:
        """That of the engine beneath; None where it has none."""
        return getattr(self._engine, "model", None)

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Resize the engine beneath."""
        self._engine.resize(slots=slots, kv_tokens=kv_tokens)

    def sleep(self) -> None:
        """Let the engine beneath sleep."""
        self._engine.sleep()

    def wake(self) -> None:
        """Wake the engine beneath."""
        self._engine.wake()

    def memory(self) -> Memory:
        """That of the engine beneath."""
        return self._engine.memory()

    def close(self) -> None:
        """Close the engine beneath."""
        self._engine.close()

    def _joined(self, completion: Completion) -> Completion | None:
        with self._lock:
            group = self._part_of.get(completion.request_id)
            if group is None:
                return None if _PART in completion.request_id else completion  # None: a text of a cancelled request
            group.done[completion.request_id] = completion
            if completion.error is None and len(group.done) < len(group.part_ids):
                return None
            self._forget(group)
            if completion.error is None:
                return _join(group)
            for part_id in group.part_ids:
                self._engine.cancel(part_id)
        return Completion(request_id=group.request_id, finish_reason=FinishReason.ERROR, error=completion.error)

    def _forget(self, group: _Group) -> None:
        del self._groups[group.request_id]
        for part_id in group.part_ids:
            del self._part_of[part_id]


def _join(group: _Group) -> Completion:
    parts = [group.done[part_id] for part_id in group.part_ids]
    first = parts[0]
    return Completion(
        request_id=group.request_id,
        text=first.text,
        token_ids=first.token_ids,
        finish_reason=first.finish_reason,
        usage=Usage(
            prompt_tokens=first.usage.prompt_tokens,
            completion_tokens=sum(part.usage.completion_tokens for part in parts),
        ),
        input_ids=first.input_ids,
        logprobs=first.logprobs,
        choices=tuple(
            Choice(text=part.text, token_ids=part.token_ids, finish_reason=part.finish_reason, logprobs=part.logprobs)
            for part in parts
        ),
    )
