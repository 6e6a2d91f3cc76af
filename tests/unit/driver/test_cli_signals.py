"""Ctrl-C at a moment at which Python drops what its handler raises."""

import subprocess
import sys

PROGRAM = """
import os, signal, time
from driver.cli import signals

signals.interrupt_for_certain()
{also}

class Object:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

try:
    Object()
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def run(also=""):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(also=also)], capture_output=True, text=True, timeout=50, check=False
    )


def test_an_interrupt_that_python_drops_comes_again():
    done = run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_so_does_one_of_those_of_which_only_the_first_counts():
    done = run("signals.interrupt_once()")
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_what_else_is_dropped_is_told_as_ever():
    done = run("Object = type('Other', (), {'__del__': lambda self: 1 / 0}); Object(); raise SystemExit(0)")
    assert "ZeroDivisionError" in done.stderr
