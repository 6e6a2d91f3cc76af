"""Faults that a prompt, or a model's name, can ask of the simulated engine, to try out what must survive them."""

import os
import signal

from broker.errors import ConfigurationError
from broker.messages import Request

DIE = "<<die>>"  # the process is killed on the spot, as by the system's out-of-memory killer
DIE_TOGETHER = "<<die together>>"  # and the supervisor with it, as where a host runs out of memory
HANG = "<<hang>>"  # `step` does not come back, as on a wedged GPU
FAIL = "<<fail>>"  # this request fails, and nothing else
OOM = "<<oom>>"  # this request does not fit into the memory, whatever else runs


def fault_of(request: Request) -> str | None:
    """The first fault that the prompt or a chat message asks for."""
    texts = [request.prompt or "", *(turn.content for turn in request.messages or ())]
    return next((f for f in (DIE, DIE_TOGETHER, HANG, FAIL, OOM) if any(f in text for text in texts)), None)


def fail_to_load(model: str) -> None:
    """Do as a model's name says: die, or be one that cannot be loaded."""
    if DIE in model:
        die()
    if FAIL in model:
        raise ConfigurationError(f"model: {model} cannot be loaded, as asked")


def die() -> None:
    """End this process as a crash does: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_together() -> None:
    """End the process that supervises this one, and this one."""
    os.kill(os.getppid(), signal.SIGKILL)
    die()


DEATHS = {DIE: die, DIE_TOGETHER: die_together}
