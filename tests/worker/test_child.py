import os

import pytest

from gpu_worker import child as module
from gpu_worker.child import Child
from gpu_worker.device import Placement
from tests.support.waiting import wait_until

# A worker that dies, and leaves a process that holds its standard error until somebody writes to the pipe.
DYING = """#!/bin/sh
echo last words >&2
cat {pipe} >/dev/null &
exit 3
"""


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_an_end_is_seen_at_once_though_a_grandchild_still_holds_the_output(tmp_path, pipe, monkeypatch):
    """Who is late with the report lets the leader take a crash for a loss."""
    program = tmp_path / "program"
    program.write_text(DYING.format(pipe=pipe), "utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(program))
    child = Child(Placement(name="gpu0@host", gpus=()), "instance", os.environ)
    code = wait_until(lambda: child.poll(0.1), what="the end of the child")
    held = child._pump.is_alive()
    pipe.open("wb").close()
    assert (code, held) == (3, True)
    assert child.last_line == "last words"
