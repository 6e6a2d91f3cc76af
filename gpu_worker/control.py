"""Answers the commands of run-time control, in Celery's main thread: what takes long goes on in the background."""

import time
from typing import Any

import msgspec

from broker.commands import (
    Begun,
    CallExtension,
    CheckHealth,
    Command,
    Health,
    Memory,
    MemoryUse,
    Operation,
    Refusal,
    Reload,
    SetLimits,
    Sleep,
    SwitchModel,
    Wake,
    parse_command,
)
from broker.errors import StokerError
from gpu_worker.extension import Extension
from gpu_worker.runtime import Runtime
from gpu_worker.standing import NotNowError
from gpu_worker.upkeep import Upkeep


class Control:
    """Does commands on one runtime."""

    def __init__(self, runtime: Runtime, extension: Extension | None) -> None:
        self._runtime = runtime
        self._upkeep = Upkeep(runtime)
        self._extension = extension

    def answer(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do a command. Returns `{"ok": …}`, or `{"error": …, "code": …}`: Celery's convention, and no exception."""
        try:
            return {"ok": msgspec.to_builtins(self._do(parse_command(name, arguments)))}
        except StokerError as error:
            return _refusal(error)

    def _do(self, command: Command) -> Health | Memory | Begun:
        match command:
            case CheckHealth():
                operation = self._upkeep.check_deep() if command.deep else self._upkeep.last
                return self._health(operation)
            case MemoryUse():
                return self._memory()
            case _:
                return Begun(session=self._runtime.session_id, operation=self._begin(command))

    def _begin(self, command: Command) -> Operation:
        upkeep = self._upkeep
        match command:
            case SetLimits():
                return upkeep.set_limits(command.slots, command.kv_tokens)
            case Sleep():
                return upkeep.sleep(finish=command.finish)
            case Wake():
                return upkeep.wake()
            case Reload():
                return upkeep.reload(finish=command.finish)
            case SwitchModel():
                return upkeep.switch(command.model, command.served_model_name, finish=command.finish)
            case CallExtension():
                return self._call(command)
            case _:
                raise NotImplementedError(command.name)

    def _call(self, command: CallExtension) -> Operation:
        if self._extension is None:
            raise NotNowError("this worker has no extension: give it one with STOKER_WORKER_EXTENSION_CLS")
        return self._upkeep.run(f"{command.method}()", self._extension.bind(command.method, command.arguments))

    def _memory(self) -> Memory:
        engine = self._runtime.seat.engine
        if engine is None:
            last = self._upkeep.last
            raise NotNowError(f"the engine is being worked on: {last.name if last else 'it is loading'}")
        return engine.memory()

    def _health(self, operation: Operation | None) -> Health:
        runtime, seat, standing = self._runtime, self._runtime.seat, self._runtime.standing
        health = Health(
            worker=runtime.worker,
            session=runtime.session_id,
            state=standing.state,
            reason=standing.reason,
            model=runtime.settings.served_model,
            uptime_s=round(time.monotonic() - runtime.started_s, 1),
            batches=len(runtime.in_hand),
            operation=operation,
        )
        view, loop = seat.view(), seat.loop
        if view is None or loop is None:
            return health
        return msgspec.structs.replace(
            health,
            running=view.load.running,
            waiting=view.load.waiting,
            slots=view.capacity.slots,
            kv_tokens=view.capacity.kv_tokens,
            context_tokens=view.capacity.context_tokens,
            steps=view.load.steps,
            generated_tokens=view.load.generated_tokens,
            last_step_s=None if seat.last_step_s is None else round(seat.last_step_s, 2),
            engine_answered_s=round(loop.answered_s, 2),
        )


def refuse_without_engine() -> dict[str, Any]:
    """The answer of a process that has no engine: Celery's main process, with a prefork pool."""
    return _refusal(NotNowError("the engine is in another process: run-time control needs the pool engine, or solo"))


def _refusal(error: StokerError) -> dict[str, Any]:
    return msgspec.to_builtins(Refusal(error=str(error), code=error.code))
