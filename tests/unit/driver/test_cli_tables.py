"""What operators see is what the data says: brackets in it are no markup."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from broker.messages import Request, SamplingParams
from broker.records import JobRecord, Load, Policy, QuarantinedRequest, Session, Sharing
from broker.states import JobState
from driver.cli import quarantine, status

MARKUP = "[/INST] [bold]x[/bold]"


def shown(table, width=400):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_a_worker_and_its_model_may_have_brackets_in_their_names():
    row = Session(id="s", worker=MARKUP, epoch=1, state="dead", reason="[/INST]", model="[m]")
    text = shown(status._worker_table([row]))
    assert all(part in text for part in (MARKUP, "dead: [/INST]", "[m]"))


def test_what_the_telemetry_says_has_columns_and_the_rest_is_behind_it():
    readings = {
        "cpu_percent": 21.9,
        "tokens_per_s": 134.2,
        "kv_used_percent": 12.5,
        "prefix_hit_percent": 40,
        "gpu0": {"temperature_c": 61, "xid_count": 0},
        "gpu1": {"error": "GPU is lost"},
    }
    row = Session(id="s", worker="w", epoch=1, state="ready", generated_tokens=7, telemetry=json.dumps(readings))
    header, line = shown(status._worker_table([row])).splitlines()
    assert header.split() == [
        "worker",
        "state",
        "model",
        "requests",
        "slots",
        "reads/writes",
        "tokens",
        "tokens/s",
        "kv",
        "prefix",
        "beat",
        "device",
    ]
    assert line.split()[:12] == ["w", "ready", "0", "0", "7", "134.2", "12.5", "%", "40", "%", "0.0", "s"]
    assert line.rstrip().endswith("cpu_percent 21.9; gpu0: temperature_c 61, xid_count 0; gpu1: error GPU is lost")


def test_a_narrow_window_cuts_no_worker_s_name():
    row = Session(id="s", worker="cpu0@a-host", epoch=1, state="ready", device="cpu", model="a-model")
    assert "cpu0@a-host" in shown(status._worker_table([row]), width=80)


def test_nothing_is_cut_off_in_a_pipe(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert status._console().width == status.UNCUT_COLUMNS


def test_measured_speeds_are_shown():
    row = Session(id="s", worker="w", epoch=1, state="ready", prefill_tokens_per_s=5150.4, decode_tokens_per_s=812.6)
    assert "5,150/813" in shown(status._worker_table([row]))


def test_a_worker_that_has_not_said_how_it_does_has_empty_columns():
    row = Session(id="s", worker="w", epoch=1, state="loading")
    assert shown(status._worker_table([row])).splitlines()[1].split() == ["w", "loading", "0", "0", "0", "0.0", "s"]


def test_a_job_may_ask_for_a_model_with_brackets():
    counts = dict.fromkeys(
        ("priority", "submitted", "done", "failed", "dropped", "prompt_tokens", "completion_tokens"), 0
    )
    times = dict.fromkeys(("created_ms", "touched_ms", "finished_ms"), 0)
    job = JobRecord(id="j", model=MARKUP, state=JobState.OPEN, **counts, **times)
    assert MARKUP in shown(status._job_table([job]))
    lost = msgspec.structs.replace(job, state=JobState.RUNNING, client_lost=True)
    assert "running: its client was lost" in shown(status._job_table([lost]))


@pytest.mark.parametrize("prompt", ["[/INST]", "[red]x"])
def test_a_quarantined_prompt_may_hold_brackets(prompt):
    request = Request(prompt=prompt, params=SamplingParams())
    entry = QuarantinedRequest(job_id="j", index=0, model="m", request=request, reason="[/x]", at_ms=0)
    text = shown(quarantine._table([entry]))
    assert prompt in text
    assert "[/x]" in text


def test_the_queue_is_shown_with_its_limits_and_what_was_saved():
    load = Load(requests=3, tokens=40)
    assert status.queue_lines(load, Policy(), Sharing()) == ["queue   3 requests, 40 tokens"]
    policy = Policy(max_pending_requests=10, max_pending_tokens=50, result_cache_ttl=60)
    sharing = Sharing(shared=5, cached=2, saved_completion_tokens=70, cache_entries=4, cache_bytes=3 << 20)
    assert status.queue_lines(load, policy, sharing) == [
        "queue   3 of 10 requests, 40 of 50 tokens",
        "saved   70 tokens: 5 requests shared, 2 cached",
        "cache   4 outputs, 3.0 of 64 MiB",
    ]
