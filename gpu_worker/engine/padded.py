"""A generation loop that needs no paged cache: for a model over several GPUs, whose paged cache would be on one.

It has the face of `GenerationLoop`, so that everything around it is the same. A step either reads the prompts of some
requests, which then join those that decode, or gives each of these a token.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from gpu_worker.engine.breakage import drop_frames
from gpu_worker.engine.cache_meter import CacheMeter
from gpu_worker.engine.loop import Run
from gpu_worker.engine.loop_options import LoopOptions
from gpu_worker.engine.offload import free_cache
from gpu_worker.engine.padded_batch import PaddedBatch, PaddedRow
from gpu_worker.engine.padded_room import bytes_of_a_token, room_for_tokens
from gpu_worker.engine.sampling import PerRequestSampling

_STEP_TOKENS = 2048  # of a step that reads prompts, where the options do not say
_STOP_TIMEOUT_S = 30.0


class _Turn(msgspec.Struct, frozen=True):
    """A row in one step, as `PerRequestSampling` takes it."""

    state: PaddedRow
    query_length: int
    has_new_token: bool


class PaddedLoop:
    """A started loop over a resident model; fulfils `Loop`."""

    def __init__(
        self,
        model: Any,
        options: LoopOptions,
        sampling: PerRequestSampling,
        inbox: "queue.Queue[Any]",
        meter: CacheMeter,
    ) -> None:
        free_cache()
        bytes_by_device = bytes_of_a_token(model)
        self.token_bytes: float = sum(bytes_by_device.values())
        self.kv_tokens: int = room_for_tokens(options, bytes_by_device)
        self.slots: int = options.max_requests
        self.step_tokens: int = options.max_batch_tokens or _STEP_TOKENS
        self.error: Exception | None = None
        self._limits = self.slots, self.step_tokens
        self._sampling = sampling
        sampling.eager = True
        self._inbox = inbox
        self._meter = meter
        self._model: Any = model
        self._batch = PaddedBatch(model)
        self._changed = threading.Condition()
        self._waiting: dict[str, PaddedRow] = {}
        self._active: dict[str, PaddedRow] = {}
        self._arguments = torch.empty(0)  # of the step that runs, for the sampling
        self._ended = False
        meter.watch_share(lambda: min(1.0, len(self._active) * self._batch.length / self.kv_tokens))
        self._thread = threading.Thread(target=self._run, name="padded-loop", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """See `Loop.alive`."""
        return not self._ended

    @property
    def active(self) -> int:
        """See `Loop.active`."""
        return len(self._active)

    @property
    def kv_bytes(self) -> int:
        """See `Loop.kv_bytes`."""
        return round(len(self._active) * self._batch.length * self.token_bytes)

    def limit(self, *, slots: int, step_tokens: int) -> None:
        """See `Loop.limit`."""
        step_tokens = min(step_tokens, self.step_tokens)
        self._limits = min(slots, step_tokens, self.slots), step_tokens

    def add(self, run: Run) -> None:
        """See `Loop.add`."""
        row = PaddedRow(
            request_id=run.key,
            initial_tokens=run.token_ids,
            max_new_tokens=run.max_new_tokens,
            ends=run.ends,
            streaming=run.streaming,
            logit_processor_kwargs={"sampling": run.sampling},
        )
        with self._changed:
            self._waiting[run.key] = row
            self._meter.prompt_tokens += len(row.initial_tokens)
            self._changed.notify_all()

    def cancel(self, key: str) -> None:
        """See `Loop.cancel`."""
        with self._changed:
            self._waiting.pop(key, None)
            self._active.pop(key, None)

    def tokens(self, key: str) -> tuple[int, ...]:
        """See `Loop.tokens`."""
        with self._changed:
            row = self._active.get(key)
            return tuple(row.generated_tokens) if row is not None else ()

    def has_begun(self, key: str) -> bool:
        """See `Loop.has_begun`."""
        with self._changed:
            return key in self._active

    def stop(self) -> None:
        """See `Loop.stop`."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join(_STOP_TIMEOUT_S)
        self._meter.forget()
        self._waiting.clear()
        self._active.clear()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    self._step()
        except Exception as error:  # who owns the requests finds out what it means
            drop_frames(error)
            self.error = error
            self._give_back(str(error))
        finally:
            self._batch.close()
            self._model = None

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._ended or self._waiting or self._active):
                self._batch.clear()  # while idle, the memory is free
                self._changed.wait()
            return not self._ended

    def _step(self) -> None:
        with self._changed:
            admitted = self._admissible()
            for row in admitted:
                self._active[row.request_id] = self._waiting.pop(row.request_id)
            present = dict(self._active)
        self._batch.keep(lambda row: present.get(row.request_id) is row)
        if admitted:
            joining = PaddedBatch(self._model)
            self._pick(
                admitted, joining.read(admitted, self._limits[1], lambda n, last: self._begin(admitted, n, last))
            )
            self._batch.join(joining)
        elif self._batch.rows:
            self._begin(self._batch.rows, 1, True)
            self._pick(self._batch.rows, self._batch.decode())

    def _admissible(self) -> list[PaddedRow]:
        """Those that wait, in their order, as far as slots, one step, and the cache at its fullest go."""
        slots, step_tokens = self._limits
        admitted: list[PaddedRow] = []
        longest, most = 0, max((row.most_tokens for row in self._active.values()), default=0)
        for row in self._waiting.values():
            longest, most = max(longest, len(row.initial_tokens)), max(most, row.most_tokens)
            rows = len(self._active) + len(admitted) + 1
            if rows > 1 and (rows > slots or rows * most > self.kv_tokens):
                break
            if admitted and (len(admitted) + 1) * longest > step_tokens:
                break
            admitted.append(row)
        return admitted

    def _begin(self, rows: Sequence[PaddedRow], tokens: int, last: bool) -> None:
        turns = [_Turn(row, tokens, last) for row in rows]
        self._arguments = self._sampling.prepare_tensor_args(turns, torch.zeros((4, len(rows)), dtype=torch.int32))

    def _pick(self, rows: Sequence[PaddedRow], scores: torch.Tensor) -> None:
        picked = self._sampling(torch.empty(0), scores, self._arguments.to(scores.device)).argmax(-1).tolist()
        with self._changed:
            for row, token in zip(rows, picked, strict=True):
                row.generated_tokens.append(token)
                if self._active.get(row.request_id) is not row:
                    continue  # cancelled meanwhile
                if row.over:
                    del self._active[row.request_id]
                    self._say(row, RequestStatus.FINISHED)
                elif row.streaming:
                    self._say(row, RequestStatus.DECODING)

    def _give_back(self, error: str) -> None:
        with self._changed:
            self._ended = True
            for row in (*self._active.values(), *self._waiting.values()):
                self._say(row, RequestStatus.FAILED, error)
            self._inbox.put(None)  # so that the end is seen at once

    def _say(self, row: PaddedRow, status: RequestStatus, error: str | None = None) -> None:
        tokens = list(row.generated_tokens)
        self._inbox.put(GenerationOutput(row.request_id, generated_tokens=tokens, status=status, error=error))
