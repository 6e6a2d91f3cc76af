"""What can be done to a worker's engine while it lives, each as an operation in the background: no work is lost.

An engine that is left in an unknown state ends the process: its supervisor starts it anew, as it was configured.
"""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from broker.commands import Operation
from broker.errors import StokerError
from broker.messages import Request, SamplingParams
from broker.records import ClaimedRequest
from broker.states import WorkerState
from gpu_worker.engine.base import Completion, Engine
from gpu_worker.engine.catalog import check_model
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.exits import EXIT_ENGINE, end_process
from gpu_worker.inbox import Inbox
from gpu_worker.operations import Note, Operations, Work
from gpu_worker.runtime import Runtime
from gpu_worker.settings import WorkerSettings
from gpu_worker.standing import NotNowError

logger = logging.getLogger(__name__)

QUICK_S = 0.3  # what takes no longer answers with its end
CANARY_LIMIT_S = 60.0
CANARY = Request(params=SamplingParams(max_tokens=4, temperature=0.0), prompt="Hello")


class NotLoadedError(StokerError):
    """The wanted model cannot be loaded; the one before serves again."""

    code = "not_loaded"


class Upkeep:
    """The operations on one runtime. A call returns at once, see `Operations.begin`; `last` tells how it goes on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._configured = runtime.settings
        self._operations = Operations(runtime.explain)

    @property
    def last(self) -> Operation | None:
        """The present operation, or else the last one."""
        return self._operations.last

    def sleep(self, *, finish: bool) -> Operation:
        """Give work back and free the GPU's memory."""
        return self._begin("sleep", lambda note: self._sleep(note, finish=finish))

    def wake(self) -> Operation:
        """Be ready again after `sleep`."""
        return self._begin("wake", self._wake)

    def reload(self, *, finish: bool) -> Operation:
        """Load the same model anew."""
        return self._begin("reload", lambda note: self._replace(note, self._runtime.settings, finish=finish))

    def switch(self, model: str, served_model_name: str, *, finish: bool) -> Operation:
        """Serve another model; the present one comes back where that cannot be loaded."""
        wanted = _with_model(self._configured, model, served_model_name)
        return self._begin("switch_model", lambda note: self._replace(note, wanted, finish=finish))

    def set_limits(self, slots: int, kv_tokens: int) -> Operation:
        """Change what runs together; what is in hand stays."""
        return self._begin("set_limits", lambda _: self._resize(slots, kv_tokens))

    def check_deep(self) -> Operation:
        """Generate a few tokens beside whatever else runs."""
        return self._begin("check_health", lambda _: self._generate())

    def run(self, name: str, work: Callable[[], Any]) -> Operation:
        """Do something else meanwhile, but none of the above."""
        return self._begin(name, lambda _: work())

    def _begin(self, name: str, work: Work) -> Operation:
        return self._operations.begin(name, work, QUICK_S)

    def _sleep(self, note: Note, *, finish: bool) -> None:
        before, during, after = WorkerState.READY, WorkerState.SLEEPING, WorkerState.SLEEPING
        if self._runtime.standing.state is not after:
            self._runtime.leave_service(during, note, finish=finish)
            note("freeing memory")
            self._change(lambda engine: engine.sleep(), before, after)

    def _wake(self, note: Note) -> None:
        before, during, after = WorkerState.SLEEPING, WorkerState.LOADING, WorkerState.READY
        if self._runtime.standing.state is not after:
            self._runtime.leave_service(during, note, finish=False)
            note("waking")
            self._change(lambda engine: engine.wake(), before, after)

    def _change(self, work: Callable[[Engine], None], before: WorkerState, after: WorkerState) -> None:
        """Work on an engine that is out of service; where it cannot be done, all is as before."""
        try:
            with _at_risk(), self._runtime.seat.hold() as engine:
                work(engine)
        except StokerError as error:
            self._runtime.return_to_service(before, str(error))
            raise
        self._runtime.return_to_service(after)

    def _replace(self, note: Note, wanted: WorkerSettings, *, finish: bool) -> None:
        runtime, present = self._runtime, self._runtime.settings
        check_model(wanted)  # what is plainly wrong changes nothing
        runtime.leave_service(WorkerState.LOADING, note, finish=finish)
        runtime.unload()
        note(f"loading {wanted.served_model}")
        if failure := self._failure_to_load(wanted):
            note(f"loading {present.served_model} again")
            with _at_risk(StokerError):
                runtime.load(present)
            failure = f"{wanted.model} cannot be loaded: {failure}; {present.served_model} is back"
            runtime.return_to_service(WorkerState.READY, failure)
            raise NotLoadedError(failure)
        runtime.return_to_service(WorkerState.READY)

    def _failure_to_load(self, wanted: WorkerSettings) -> str:
        try:
            self._runtime.load(wanted)
        except Exception as error:  # only its words may live on: its frames hold what was loaded
            return str(error) or type(error).__name__
        return ""

    def _resize(self, slots: int, kv_tokens: int) -> dict[str, int]:
        runtime = self._runtime
        self._require_ready()
        with _at_risk(), runtime.seat.hold() as engine:
            engine.resize(slots=slots, kv_tokens=kv_tokens)
            capacity = engine.capacity
        runtime.explain("")  # also tells the driver
        return {"slots": capacity.slots, "kv_tokens": capacity.kv_tokens}

    def _generate(self) -> str:
        self._require_ready()
        loop, inbox, batch_id = self._runtime.loop, Inbox(), f"canary-{uuid.uuid4().hex}"
        loop.submit(batch_id, (ClaimedRequest(index=0, request=CANARY),), inbox)
        completion = _wait_for_end(inbox)
        if completion is None:
            loop.withdraw_batch(batch_id)
            raise EngineDeadError(f"the engine has not generated a few tokens within {CANARY_LIMIT_S:g} s")
        if completion.error is not None:
            raise EngineDeadError(f"the engine does not generate: {completion.error.message}")
        return completion.text

    def _require_ready(self) -> None:
        state = self._runtime.standing.state
        if state is not WorkerState.READY:
            raise NotNowError(f"the worker is {state}")


def _with_model(configured: WorkerSettings, model: str, served_model_name: str) -> WorkerSettings:
    """The settings for a model. What was configured for one model alone, trust above all, holds for no other."""
    if model != configured.model:
        configured = msgspec.structs.replace(configured, revision="", trust_remote_code=False, openai_tokenizer="")
    return msgspec.structs.replace(configured, model=model, served_model_name=served_model_name)


def _wait_for_end(inbox: Inbox) -> Completion | None:
    """The canary's end; None when it does not come in time. Before it there may be tokens to save."""
    give_up_s = time.monotonic() + CANARY_LIMIT_S
    while (left_s := give_up_s - time.monotonic()) > 0:
        if (completion := inbox.take(left_s).completed.get(0)) is not None:
            return completion
    return None


@contextlib.contextmanager
def _at_risk(*fatal: type[Exception]) -> Generator[None]:
    """End the process where an engine may be left half done; our own errors leave it whole, unless they are `fatal`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StokerError) and not isinstance(error, (EngineDeadError, *fatal)):
            raise
        end_process(EXIT_ENGINE, f"the engine is lost: {type(error).__name__}: {error}")
