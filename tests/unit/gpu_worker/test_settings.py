import re
from pathlib import Path

import pytest

from broker.errors import ConfigurationError
from gpu_worker.settings import WorkerSettings, load_worker_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engine", "magic"),
        ("pool", "threads"),
        ("dtype", "int4"),
        ("log_level", "LOUD"),
        ("max_batches", 0),
        ("slots", -1),
        ("kv_tokens", -1),
        ("max_restarts", -1),
        ("checkpoint_tokens", -1),
        ("failure_limit", 0),
        ("openai_context_tokens", -1),
        ("openai_start_timeout", -1),
        ("poison_pause", -1),
        ("drain_timeout", -0.1),
        ("restart_backoff", -1),
        ("simulated_tokens_per_s", -1),
        ("simulated_load_s", -1),
        ("model", ""),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        WorkerSettings(**{name: value})


def test_all_problems_come_in_one_error():
    with pytest.raises(ConfigurationError) as caught:
        WorkerSettings(engine="magic", max_batches=0, model="", poison_pause=-1)
    assert all(name in str(caught.value) for name in ("engine", "max_batches", "model", "poison_pause"))


def test_what_may_be_chosen_is_in_the_message():
    with pytest.raises(ConfigurationError, match="one of engine, solo, prefork"):
        WorkerSettings(pool="threads")


def test_requests_may_call_the_model_by_another_name():
    assert WorkerSettings(model="path/to/model").served_model == "path/to/model"
    assert WorkerSettings(model="path/to/model", served_model_name="mine").served_model == "mine"


def test_only_the_engine_pool_runs_several_batches_at_once():
    assert WorkerSettings(max_batches=5).concurrency == 5
    assert WorkerSettings(max_batches=5, pool="solo").concurrency == 1
    assert WorkerSettings(max_batches=5, pool="prefork").concurrency == 1


def test_the_cache_is_where_it_was_wanted():
    assert WorkerSettings(cache_dir="~/x").cache_path == Path.home() / "x"
    assert WorkerSettings().cache_path == Path.home() / ".cache/stoker"


def test_the_environment_is_read_and_keywords_win():
    settings = load_worker_settings({"STOKER_POOL": "solo", "STOKER_MODEL": "m", "STOKER_SLOTS": "9"}, slots=2)
    assert (settings.pool, settings.model, settings.slots) == ("solo", "m", 2)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "needs openai_url, or openai_command with {port} in it"),
        ({"openai_command": "serve --port 8000"}, "needs openai_url, or openai_command with {port} in it"),
        ({"openai_url": "localhost:8000"}, "openai_url must be http:// or https://"),
        ({"openai_url": "http://me:secret@localhost"}, "no password in it"),
        ({"openai_url": "http://localhost:abc"}, "a host and a port"),
        ({"openai_url": "http://h:1", "openai_command": "x {port}"}, "give one of both"),
        ({"openai_url": "http://localhost", "openai_dialect": "x"}, "openai_dialect='x' must be one of auto, openai"),
    ],
)
def test_a_server_must_be_named(given, problem):
    with pytest.raises(ConfigurationError, match=re.escape(problem)) as caught:
        WorkerSettings(engine="openai", **given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [{"openai_url": "http://h:1/v1"}, {"openai_url": "http://[::1]:8000"}, {"openai_command": "serve --port={port}"}],
)
def test_a_server_by_url_or_command(given):
    settings = WorkerSettings(engine="openai", **given)
    assert {name: getattr(settings, name) for name in given} == given


def test_a_key_is_never_shown():
    settings = WorkerSettings(openai_api_key="secret")
    assert "secret" not in repr(settings) + str(settings)
    assert "openai_api_key='***'" in repr(settings)
