"""A client starts fast and installs little: what is imported where, seen from a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "celery", "kombu")


def loaded_by(statement, names=HEAVY):
    """Which of these modules a fresh process has after a statement."""
    program = f"{statement}\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import driver",
        "from driver import Client, Job, Output, Progress, Request, SamplingParams",
        "import broker.store",
        "import driver.cli.app",
    ],
)
def test_a_client_loads_nothing_heavy(statement):
    assert loaded_by(statement) == []


def test_redis_py_is_loaded_with_the_first_client():
    assert loaded_by("from driver import Client, SamplingParams", ("redis",)) == []
    assert loaded_by("from driver import Client; Client('redis://127.0.0.1:1/0')", ("redis",)) == ["redis"]


def test_the_facade_is_loaded_only_when_it_is_asked_for():
    assert loaded_by("import driver; driver.Client", ("driver.driver",)) == []
    assert loaded_by("from driver import Driver", ("driver.driver",)) == ["driver.driver"]


@pytest.mark.parametrize("statement", ["from driver import Driver", "import driver.service"])
def test_a_driver_loads_no_model_library(statement):
    assert loaded_by(statement, ("torch", "transformers", "gpu_worker")) == []


@pytest.mark.parametrize("module", ["gpu_worker.supervisor", "gpu_worker.__main__", "gpu_worker.device"])
def test_a_supervisor_loads_nothing_heavy(module):
    """It pins the GPU: nothing may have looked at CUDA before."""
    assert loaded_by(f"import {module}") == []


@pytest.mark.parametrize("module", ["gpu_worker.bootstrap", "gpu_worker.engine.catalog", "gpu_worker.execute"])
def test_a_worker_loads_no_model_library_before_its_engine(module):
    assert loaded_by(f"import {module}", ("torch", "transformers", "driver")) == []


def test_a_worker_refuses_a_wrong_model_before_it_loads_a_model_library():
    lines = (
        "from broker.errors import ConfigurationError",
        "from gpu_worker.engine.catalog import create_engine",
        "from gpu_worker.settings import WorkerSettings",
        "try: create_engine(WorkerSettings(engine='transformers', model='/no/such/model'))",
        "except ConfigurationError: refused = True",
        "assert refused",
    )
    assert loaded_by("\n".join(lines), ("torch", "transformers")) == []


@pytest.mark.parametrize("module", ["broker.ledger", "broker.sessions", "broker.messages", "broker.closing"])
def test_the_broker_knows_neither_side(module):
    assert loaded_by(f"import {module}", ("driver", "gpu_worker", "torch")) == []
