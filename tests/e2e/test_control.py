"""Run-time control of real workers: from Python, from `stoker ctl`, from Celery's own command line."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from broker.commands import (
    Begun,
    CallExtension,
    CheckHealth,
    Refusal,
    Reload,
    SetLimits,
    Sleep,
    SwitchModel,
    Wake,
)
from driver.control import WorkerControl
from tests.e2e.test_broker_outages import cut_connections
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

PATIENT = ("--timeout", "30")  # Celery's own is a second; it waits no longer than for all who are asked
OWN_MODEL = "smollm2-135m"  # what the workers of the cluster are configured with

EXTENSION = '''
import os

class Extension:
    def __init__(self, context):
        self.context = context

    def add(self, first: int, second: int = 1) -> int:
        """Add."""
        return first + second

    def describe(self, title: str) -> dict:
        return {"worker": self.context.worker, "title": title, "slots": self.context.engine.capacity.slots}

    def fail(self):
        raise ValueError("as it should")

    def _hidden(self):
        os._exit(1)
'''


@pytest.fixture
def do(cluster):
    """Gives a command to one worker; the end of the operation that it begins, or the answer."""
    control = WorkerControl(cluster.store)

    def done(name, command, *, wait=True):
        worker = f"{name}@e2e"
        answer = control.ask([worker], command)[worker]
        begun = (
            Begun(session=answer.session, operation=answer.operation) if isinstance(command, CheckHealth) else answer
        )
        return control.wait({worker: begun}, 30)[worker] if wait and isinstance(begun, Begun) else answer

    yield done
    control.close()


@pytest.fixture
def ctl(stoker_here):
    """`stoker ctl`."""
    return lambda *arguments: stoker_here("ctl", *arguments)


def state(cluster, name):
    session = cluster.session(name)
    return session and (session.state, session.model)


def wait_for(cluster, name, *wanted):
    """Wait for a state and a model: the beat that says so comes behind the end of the operation."""
    wait_until(lambda: state(cluster, name) == wanted, what=lambda: f"{wanted}, not {state(cluster, name)}")


def celery(cluster, *arguments):
    """Starts Celery's own command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "broker.app", *arguments],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def attempts(cluster, job):
    return cluster.redis.hgetall(cluster.store.keys.job(job.id).attempts)


def assert_undisturbed(cluster, job, asked):
    """Every request has one output, and none was blamed or done twice; the outputs."""
    outputs = assert_each_done_once(cluster, job, asked)
    assert attempts(cluster, job) == {}
    assert cluster.store.queries.job(job.id).dropped == 0
    return outputs


def test_a_sleep_in_the_middle_of_a_job_moves_its_work_and_a_wake_brings_the_worker_back(cluster, do, ctl):
    asked = requests(24, tokens=300)
    job = cluster.client.submit(asked)
    name = cluster.busy_one(tokens=50)
    other, before = cluster.other(name), cluster.session(name)

    slept = do(name, Sleep())

    assert (slept.name, slept.ended, slept.error) == ("sleep", True, "")
    session = cluster.session(name)
    assert (session.state, session.inhand_requests, session.batches) == ("sleeping", 0, 0)
    outputs = assert_undisturbed(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {f"{other}@e2e"}
    assert do(name, Sleep()).error == ""

    do(other, Sleep())
    again = cluster.client.submit(requests(8, tokens=20))
    assert cluster.client.obstacle() == ("the workers for any model are asleep: wake it with `stoker ctl a@e2e wake`")
    # Nobody thinks that it hangs or is dead: it goes on beating, as the same session.
    wait_until(lambda: cluster.session(name).beat_ms > session.beat_ms + 2500, what="beats beyond the stall timeout")
    woken = ctl("a@e2e,b@e2e", "wake")
    assert woken.returncode == 0
    assert [line.partition(" done in ")[0] for line in woken.stdout.splitlines()] == ["a@e2e: wake", "b@e2e: wake"]
    assert_undisturbed(cluster, again, requests(8, tokens=20))
    assert cluster.session(name).id == before.id


def test_a_switch_gives_work_of_the_old_model_back_and_serves_the_new_one(cluster, do):
    asked, others = requests(60, tokens=200), requests(8, tokens=20)
    job = cluster.client.submit(asked, model=OWN_MODEL)
    other = cluster.client.submit(others, model="other")
    name = cluster.busy_one(tokens=50)
    before = cluster.session(name)

    assert do(name, SwitchModel(model="other")).error == ""

    wait_for(cluster, name, "ready", "other")
    assert {output.worker_id for output in assert_undisturbed(cluster, other, others)} == {f"{name}@e2e"}
    assert do(name, SwitchModel(model="third", served_model_name=OWN_MODEL, finish=True)).error == ""
    wait_for(cluster, name, "ready", OWN_MODEL)
    assert_undisturbed(cluster, job, asked)
    after = cluster.session(name)
    assert after.id == before.id
    assert after.generated_tokens > before.generated_tokens


def test_a_model_that_cannot_be_loaded_leaves_the_one_before(cluster, do):
    asked = requests(24, tokens=100)
    job = cluster.client.submit(asked)
    name = cluster.busy_one(tokens=50)

    failed = do(name, SwitchModel(model="<<fail>>"))

    assert failed.error == "<<fail>> cannot be loaded: model: <<fail>> cannot be loaded, as asked; smollm2-135m is back"
    wait_for(cluster, name, "ready", OWN_MODEL)
    wait_until(lambda: cluster.session(name).reason == failed.error)
    assert_undisturbed(cluster, job, asked)
    assert do(name, Reload()).error == ""
    wait_until(lambda: cluster.session(name).reason == "")


def test_a_worker_that_dies_in_a_switch_comes_back_as_it_was_configured(cluster, ctl):
    asked = requests(60, tokens=200)
    job = cluster.client.submit(asked)
    name = cluster.busy_one(tokens=50)
    before = cluster.session(name).id

    done = ctl(f"{name}@e2e", "switch_model", "<<die>>", "--finish")

    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}@e2e: the worker ended meanwhile; its supervisor starts it again")
    cluster.ready("a", "b")
    assert cluster.session(name).id != before
    wait_for(cluster, name, "ready", OWN_MODEL)
    assert_undisturbed(cluster, job, asked)


def test_a_sleeper_that_is_killed_starts_anew_awake(cluster, do):
    do("a", Sleep())
    before = cluster.session("a").id

    os.kill(cluster.workers["a"].child_pid, signal.SIGKILL)

    wait_until(lambda: (row := cluster.session("a")) and row.id != before, what="a new life")
    cluster.ready("a")
    wait_for(cluster, "a", "ready", OWN_MODEL)


def test_one_operation_at_a_time_and_the_second_is_told_of_the_first(cluster, do):
    asked = requests(64, tokens=300)  # as many as both run at once
    job = cluster.client.submit(asked)
    cluster.busy("a")

    first = do("a", Sleep(finish=True), wait=False)
    second = do("a", Reload())
    health = do("a", CheckHealth(), wait=False)

    assert (first.operation.name, first.operation.ended) == ("sleep", False)
    assert isinstance(second, Refusal)
    assert re.fullmatch(r"busy with sleep, for \d+\.\d s now: finishing what is in hand", second.error)
    assert (health.state, health.operation.stage) == ("sleeping", "finishing what is in hand")
    assert health.running > 0
    assert health.batches > 0
    outputs = assert_undisturbed(cluster, job, asked)
    assert {output.worker_id for output in outputs} == {"a@e2e", "b@e2e"}
    wait_until(lambda: do("a", CheckHealth(), wait=False).operation.ended)
    assert isinstance(do("a", SetLimits(slots=1)).error, str)
    assert do("a", CheckHealth(deep=True)).error == "the worker is sleeping"
    do("a", Wake())


def test_limits_are_seen_by_the_driver_and_keep_what_is_in_hand(cluster, do):
    job = cluster.client.submit(asked := requests(32, tokens=100))
    name = cluster.busy_one()
    before = cluster.session(name)

    limited = do(name, SetLimits(slots=3, kv_tokens=2048))

    assert limited.result == {"slots": 3, "kv_tokens": 2048}
    assert wait_until(lambda: (row := cluster.session(name)).slots == 3 and row).kv_tokens == 2048
    assert_undisturbed(cluster, job, asked)
    do(name, SetLimits(slots=before.slots, kv_tokens=before.kv_tokens))
    wait_until(lambda: cluster.session(name).slots == before.slots)


def test_health_and_memory_of_several_workers(cluster, ctl):
    done = ctl("all", "check_health", "--deep")
    first, second = done.stdout.splitlines()
    assert first.startswith("a@e2e: ready, model smollm2-135m, 0 running, 0 waiting, 0 batches, up ")
    assert second.startswith("b@e2e: ready, ")
    assert "check_health done in " in second
    memory = json.loads(ctl("a@e2e, b@e2e", "memory", "--json").stdout)
    assert set(memory) == {"a@e2e", "b@e2e"}
    assert all(answer["ok"]["rss_mib"] > 10 for answer in memory.values())
    unknown = ctl("a@e2e,nobody@e2e", "memory")
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "stoker: error: no worker 'nobody@e2e' is alive (alive: a@e2e, b@e2e)\n",
    )


def test_commands_of_a_users_own_in_a_worker_with_the_solo_pool(cluster, do, ctl, tmp_path):
    (tmp_path / "own_commands.py").write_text(EXTENSION)
    settings = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "STOKER_SERVED_MODEL_NAME": "mine",
        "STOKER_WORKER_EXTENSION_CLS": "own_commands:Extension",
        "STOKER_POOL": "solo",
    }
    worker = cluster.start_worker("c", settings=settings)
    cluster.ready("c")

    def call(method, *arguments):
        return do("c", CallExtension(method=method, arguments=arguments))

    assert call("add", "first=2", "second=40").result == 42
    assert call("describe", "title=12").result == {"worker": "c@e2e", "title": "12", "slots": 32}
    assert call("fail").error == "ValueError: as it should"
    failed = ctl("c@e2e", "call", "add", "first=two")
    assert failed.returncode == 1
    assert failed.stderr.startswith("c@e2e: add(first: int, second: int = 1) -> int: Expected `int`")
    assert do("a", CallExtension(method="add")).error.startswith("this worker has no extension")

    do("c", Sleep())
    job = cluster.client.submit(requests(4, tokens=10), model="mine")
    wait_for(cluster, "c", "sleeping", "mine")
    do("c", Wake())
    assert_undisturbed(cluster, job, requests(4, tokens=10))
    do("c", Sleep())
    assert cluster.store.sessions.request_drain(cluster.session("c").id)
    assert worker.wait() == 0


def test_a_wrong_extension_ends_the_start_with_a_line(cluster):
    worker = cluster.start_worker("c", settings={"STOKER_WORKER_EXTENSION_CLS": "nothing.there:Class"})
    assert worker.wait() == 78
    why = "ModuleNotFoundError: No module named 'nothing'"
    assert f"worker_extension_cls='nothing.there:Class' cannot be made: {why}" in worker.log


def test_celery_s_own_command_line_gives_the_same_commands(cluster, do):
    commands = (
        celery(cluster, "inspect", "check_health", "--json", *PATIENT, "-d", "a@e2e"),
        celery(cluster, "control", "--json", *PATIENT, "-d", "a@e2e", "sleep", "true"),
        celery(cluster, "control", *PATIENT, "-d", "b@e2e", "call_extension", "add", "first=1", "second=2"),
        celery(cluster, "control", *PATIENT, "-d", "b@e2e", "set_limits", "eight"),
    )
    health, slept, called, refused = [command.communicate(timeout=60)[0] for command in commands]
    assert json.loads(health)["a@e2e"]["ok"]["model"] == OWN_MODEL
    (reply,) = json.loads(slept)
    assert reply["a@e2e"]["ok"]["operation"]["name"] == "sleep"
    assert "this worker has no extension" in called
    assert "set_limits: Expected `int`" in refused
    wait_for(cluster, "a", "sleeping", OWN_MODEL)
    do("a", Wake())


def test_who_asks_again_does_not_notice_that_the_connections_were_cut_meanwhile(cluster):
    """The first one failed, with a connection from Celery's pool."""
    control = WorkerControl(cluster.store)
    for _ in range(2):
        assert control.ask(["a@e2e"], CheckHealth()).keys() == {"a@e2e"}
        cut_connections(cluster, at_least=1)
    control.close()
