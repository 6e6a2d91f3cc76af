"""`stoker worker`: its options become the settings of the worker's process."""

import pytest
from typer.testing import CliRunner

from driver.cli import roles
from driver.cli.app import app
from gpu_worker.settings import load_worker_settings


@pytest.fixture
def settings_of(monkeypatch):
    """The settings that a worker reads which was started with these options."""
    seen = []
    monkeypatch.setattr(roles.os, "execve", lambda _path, _command, environment: seen.append(environment))
    monkeypatch.setattr(roles, "Store", lambda _settings: _Broker())

    def run(*options):
        result = CliRunner().invoke(app, ["worker", *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return load_worker_settings({k: v for k, v in seen.pop().items() if k.startswith("STOKER_")})

    return run


class _Broker:
    def check(self):
        return self

    def close(self):
        """There is nothing to close."""


def test_options_that_are_not_given_leave_the_defaults(settings_of):
    read, defaults = settings_of(), load_worker_settings({"STOKER_LOG_LEVEL": "INFO"})

    assert read == defaults


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (("--dtype", "float16"), "dtype", "float16"),
        (("--attention", "sdpa"), "attention", "sdpa"),
        (("--slots", "8"), "slots", 8),
        (("--revision", "abc"), "revision", "abc"),
        (("--trust-remote-code",), "trust_remote_code", True),
        (("--offline",), "offline", True),
        (("--device", "cuda:1"), "device", "cuda:1"),
        (("--served-model-name", "chat"), "served_model_name", "chat"),
    ],
)
def test_an_option_is_a_setting(settings_of, options, field, value):
    assert getattr(settings_of(*options), field) == value
