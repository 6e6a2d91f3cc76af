"""What users import, and how they call it: changing anything here is a breaking change."""

import inspect

import pytest

import driver

NAMES = [
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "ChatMessage",
    "Client",
    "ConfigurationError",
    "Delta",
    "Driver",
    "DriverSettings",
    "ExceedsLimitError",
    "FinishReason",
    "IncompleteJobError",
    "InvalidRequestError",
    "Job",
    "JobNotFoundError",
    "JobState",
    "Output",
    "OutputError",
    "OutputSource",
    "Progress",
    "QueueFullError",
    "Request",
    "SamplingParams",
    "StokerError",
    "Usage",
]
CALLS = {
    "Client": ["url", "*settings"],
    "Client.submit": [
        "prompts",
        "params",
        "*model",
        "*priority",
        "*deadline",
        "*user",
        "*block",
        "*timeout",
        "*stream",
        "*weight",
    ],
    "Client.open_job": ["*model", "*priority", "*deadline", "*user", "*block", "*timeout", "*weight"],
    "Client.run": ["prompts", "params", "*model", "*priority", "*user", "*window", "*timeout", "*weight"],
    "Client.job": ["job_id"],
    "Client.workers": [],
    "Client.obstacle": ["model"],
    "Client.close": [],
    "Job.progress": [],
    "Job.as_completed": ["timeout"],
    "Job.get": ["timeout"],
    "Job.stream": ["timeout"],
    "Job.cancel": [],
    "Driver": ["settings", "*worker_environment", "*port", "*log_folder"],
    "Driver.start": [],
    "Driver.stop": [],
    "Driver.wait_until_ready": ["timeout"],
    "Driver.check": [],
    "Driver.submit_task": ["task"],
    "Driver.get_result": ["task_id", "timeout"],
    "Driver.scale_workers": ["count"],
}
FIELDS = {
    "SamplingParams": ["max_tokens", "temperature", "top_p", "top_k", "stop", "seed"],
    "Request": ["params", "prompt", "messages", "input_ids", "return_input_ids", "stream"],
    "ChatMessage": ["role", "content"],
    "Delta": ["index", "offset", "text", "output"],
    "Output": ["index", "text", "token_ids", "finish_reason", "usage", "error", "input_ids", "worker_id"],
    "OutputError": ["code", "message"],
    "Usage": ["prompt_tokens", "completion_tokens"],
    "Progress": [
        "total",
        "done",
        "failed",
        "pending",
        "running",
        "completion_tokens",
        "elapsed_s",
        "tokens_per_s",
        "eta_s",
    ],
}


def test_the_public_names_are_these():
    assert driver.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there(name):
    assert getattr(driver, name).__doc__


@pytest.mark.parametrize("name", CALLS)
def test_a_call_keeps_its_parameters(name):
    owner, _, method = name.partition(".")
    call = getattr(getattr(driver, owner), method) if method else getattr(driver, owner)
    parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    assert [f"*{p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters] == CALLS[name]


@pytest.mark.parametrize("name", FIELDS)
def test_a_message_keeps_its_fields(name):
    kind = getattr(driver, name)
    assert list(kind.__struct_fields__)[: len(FIELDS[name])] == FIELDS[name]  # new ones go to the end
    assert kind.__struct_config__.frozen
    assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(kind).parameters.values())


def test_what_does_not_exist_is_said_so():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        driver.Nothing  # noqa: B018
