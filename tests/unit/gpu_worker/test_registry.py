import sys

import pytest

from broker.errors import ConfigurationError
from gpu_worker.engine.catalog import create_engine
from gpu_worker.registry import engine_names, find_engine
from gpu_worker.settings import WorkerSettings

OURS = ("transformers", "openai", "simulated")
MADE = """
from gpu_worker.engine.simulated import SimulatedEngine

class Mine(SimulatedEngine):
    pass

def make(settings):
    engine = Mine()
    engine.model = settings.model
    return engine
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes packages that look installed."""

    def install(entries, **modules):
        info = tmp_path / "added-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[stoker.engines]", *lines]))
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("added", None)


@pytest.mark.parametrize("name", OURS)
def test_our_own_can_be_loaded_by_their_references(name):
    assert callable(find_engine(name).load())


def test_what_is_installed_is_found_and_made_with_the_settings(installed):
    installed({"mine": "added:make"}, added=MADE)
    assert engine_names() == (*OURS, "mine")
    engine = create_engine(WorkerSettings(engine="mine", model="m"))
    assert engine.model == "m"


def test_what_lacks_a_method_is_no_engine(installed):
    installed({"mine": "added:make"}, added=f"{MADE}\nclass Mine:\n    step = SimulatedEngine.step\n")
    with pytest.raises(
        ConfigurationError, match="engine='mine': Mine lacks traits, capacity, load, warm_up, submit, c"
    ):
        create_engine(WorkerSettings(engine="mine"))


def test_nobody_takes_our_names(installed):
    installed({"simulated": "added:make"}, added="")
    assert find_engine("simulated").value.startswith("gpu_worker.")
    assert engine_names() == OURS


def test_an_unknown_name_is_refused_with_those_that_there_are(installed):
    installed({"mine": "added:make"}, added="")
    with pytest.raises(ConfigurationError, match="must be one of transformers, openai, simulated, mine"):
        WorkerSettings(engine="magic")


@pytest.mark.parametrize("source", ["import not_there", "1 / 0", "other = 1"])
def test_one_that_cannot_be_loaded_is_said_so(installed, source):
    installed({"mine": "added:make"}, added=source)
    with pytest.raises(ConfigurationError, match=r"engine='mine': its entry point added:make cannot be loaded"):
        create_engine(WorkerSettings(engine="mine"))
