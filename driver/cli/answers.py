"""Answers of run-time control as an operator reads them: a line each, or JSON."""

import json
from typing import Any

import msgspec

from broker.commands import Answer, Begun, Health, Memory, Operation, Refusal


def failed(answer: Answer, *, wait: bool) -> bool:
    """Whether the command did not do what was asked for; with `wait`, an operation that has not ended failed, too."""
    operation = _operation(answer)
    if isinstance(answer, Health) and not wait:
        return False  # it tells of something that was before
    unfinished = operation is not None and wait and not operation.ended
    return isinstance(answer, Refusal) or unfinished or bool(operation and operation.error)


def answer_json(answer: Answer) -> dict[str, Any]:
    """What `--json` shows of an answer."""
    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain if isinstance(answer, Refusal) else {"ok": plain}


def answer_line(answer: Answer) -> str:
    """An answer in one line."""
    match answer:
        case Refusal():
            return answer.error
        case Memory():
            return _memory_line(answer)
        case Health():
            return _health_line(answer)
        case Begun():
            return _operation_line(answer.operation)
        case Operation():
            return _operation_line(answer)


def _operation(answer: Answer) -> Operation | None:
    if isinstance(answer, (Begun, Health)):
        return answer.operation
    return answer if isinstance(answer, Operation) else None


def _operation_line(operation: Operation) -> str:
    if operation.error:
        return f"{operation.name} failed: {operation.error}"
    if not operation.ended:
        return f"{operation.name} goes on{': ' if operation.stage else ''}{operation.stage}"
    result = "" if operation.result is None else f": {json.dumps(operation.result, ensure_ascii=False)}"
    return f"{operation.name} done in {operation.seconds:.1f} s{result}"


def _memory_line(memory: Memory) -> str:
    sizes = (
        ("weights", memory.weights_mib),
        ("KV cache", memory.kv_cache_mib),
        ("allocated", memory.allocated_mib),
        ("reserved", memory.reserved_mib),
        ("free", memory.free_mib),
        ("process", memory.rss_mib),
    )
    return f"on {memory.device}, " + ", ".join(f"{name} {mib:.0f} MiB" for name, mib in sizes if mib is not None)


def _health_line(health: Health) -> str:
    parts = [f"{health.state}: {health.reason}" if health.reason else health.state, f"model {health.model}"]
    parts += [f"{health.running} running", f"{health.waiting} waiting", f"{health.batches} batches"]
    parts += [f"up {health.uptime_s:.0f} s"]
    if health.last_step_s is not None:
        parts.append(f"last step {health.last_step_s:.1f} s ago")
    if health.engine_answered_s is not None:
        parts.append(f"engine answered {health.engine_answered_s:.1f} s ago")
    if health.operation is not None:
        parts.append(_operation_line(health.operation))
    return ", ".join(parts)
