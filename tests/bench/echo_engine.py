"""An engine that costs nothing: it gives the prompt back. Only what is around it can take time."""

import threading
from collections.abc import Mapping
from pathlib import Path

from broker.commands import Memory
from broker.messages import FinishReason, Request, Usage
from gpu_worker.engine.base import Capacity, Completion, Engine, Load, Traits
from gpu_worker.engine.memory import rss_mib
from gpu_worker.settings import WorkerSettings

NAME = "echo"
SLOTS = 512
CONTEXT_TOKENS = 8192


class EchoEngine:
    """Fulfils `Engine`; a request ends in the step after its `submit`."""

    traits = Traits(token_ids=False)

    def __init__(self, slots: int) -> None:
        self.capacity = Capacity(slots=slots, kv_tokens=slots * CONTEXT_TOKENS, context_tokens=CONTEXT_TOKENS)
        self._changed = threading.Condition()
        self._held: dict[str, Request] = {}
        self._steps = self._tokens = 0
        self._closed = False

    @property
    def load(self) -> Load:
        """What has come since the last step."""
        return Load(running=len(self._held), waiting=0, steps=self._steps, generated_tokens=self._tokens)

    def warm_up(self) -> None:
        """There is nothing to warm."""

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request."""
        with self._changed:
            self._held[request_id] = request
            self._changed.notify()

    def step(self, timeout_s: float) -> list[Completion]:
        """Answer all that is there, or wait for something to come."""
        with self._changed:
            if not self._held and not self._closed:
                self._changed.wait(timeout_s)
            held, self._held = self._held, {}
            if held:
                self._steps += 1
                self._tokens += len(held)
        return [_answer(request_id, request) for request_id, request in held.items()]

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request."""
        with self._changed:
            request = self._held.pop(request_id, None)
        return _answer(request_id, request) if request is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """There are no tokens."""
        return ()

    def text(self, request_id: str) -> str:
        """A request ends before there is a part of its text."""
        return ""

    def not_begun(self) -> tuple[str, ...]:
        """None: each is answered in the next step."""
        return ()

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """There is nothing to resize."""

    def sleep(self) -> None:
        """There is no memory to free."""

    def wake(self) -> None:
        """It never slept."""

    def memory(self) -> Memory:
        """That of the process."""
        return Memory(device="cpu", rss_mib=rss_mib())

    def close(self) -> None:
        """Let a waiting `step` return."""
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify_all()


def make(settings: WorkerSettings) -> Engine:
    """The entry point."""
    return EchoEngine(settings.slots or SLOTS)


def install(folder: Path, path: str) -> Mapping[str, str]:
    """Make the engine known to workers, as an installed package would be; their environment, with `path` in it.

    `path` is what else is on their PYTHONPATH.
    """
    info = folder / "stoker_bench-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker-bench\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stoker.engines]\n{NAME} = {__name__}:make\n")
    return {"PYTHONPATH": f"{folder}:{path}", "STOKER_ENGINE": NAME}


def _answer(request_id: str, request: Request) -> Completion:
    return Completion(
        request_id=request_id,
        text=request.prompt or "",
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=1, completion_tokens=1),
    )
