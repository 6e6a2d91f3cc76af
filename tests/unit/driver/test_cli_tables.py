"""What operators see is what the data says: brackets in it are no markup."""

import io

import pytest
from rich.console import Console

from broker.messages import JobState, Request, SamplingParams
from broker.records import JobRecord, QuarantinedRequest, Session
from driver.cli import quarantine, status

MARKUP = "[/INST] [bold]x[/bold]"


def shown(table):
    console = Console(file=io.StringIO(), width=400)
    console.print(table)
    return console.file.getvalue()


def test_a_worker_and_its_model_may_have_brackets_in_their_names():
    row = Session(id="s", worker=MARKUP, epoch=1, state="dead", reason="[/INST]", model="[m]")
    text = shown(status._worker_table([row]))
    assert all(part in text for part in (MARKUP, "dead: [/INST]", "[m]"))


def test_a_job_may_ask_for_a_model_with_brackets():
    counts = dict.fromkeys(
        ("priority", "submitted", "done", "failed", "dropped", "prompt_tokens", "completion_tokens"), 0
    )
    times = dict.fromkeys(("created_ms", "touched_ms", "finished_ms"), 0)
    job = JobRecord(id="j", model=MARKUP, state=JobState.OPEN, **counts, **times)
    assert MARKUP in shown(status._job_table([job]))


@pytest.mark.parametrize("prompt", ["[/INST]", "[red]x"])
def test_a_quarantined_prompt_may_hold_brackets(prompt):
    request = Request(prompt=prompt, params=SamplingParams())
    entry = QuarantinedRequest(job_id="j", index=0, model="m", request=request, reason="[/x]", at_ms=0)
    text = shown(quarantine._table([entry]))
    assert prompt in text
    assert "[/x]" in text
