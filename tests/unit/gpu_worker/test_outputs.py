from broker.messages import FinishReason, OutputError, Request, SamplingParams, Usage
from broker.records import ClaimedRequest
from gpu_worker import outputs
from gpu_worker.engine.base import Completion

ENDED = Completion(
    request_id="b/3",
    text="so far",
    token_ids=(1, 2),
    finish_reason=FinishReason.STOP,
    usage=Usage(prompt_tokens=4, completion_tokens=2),
    input_ids=(7, 8, 9, 10),
)


def item(**fields):
    return ClaimedRequest(index=3, request=Request(prompt="x", params=SamplingParams(), **fields))


def test_a_completion_becomes_the_output_of_its_request():
    output = outputs.completed(item(), ENDED, "gpu0@host")
    assert (output.index, output.text, output.token_ids, output.worker_id) == (3, "so far", (1, 2), "gpu0@host")
    assert (output.finish_reason, output.usage, output.error) == (FinishReason.STOP, ENDED.usage, None)


def test_the_prompts_tokens_go_back_only_to_who_asked_for_them():
    assert outputs.completed(item(), ENDED, "w").input_ids is None
    assert outputs.completed(item(return_input_ids=True), ENDED, "w").input_ids == (7, 8, 9, 10)


def test_what_ends_early_has_its_error_and_its_text_so_far():
    error = OutputError(code="cancelled", message="stop")
    output = outputs.ended(item(), ENDED, error, "w")
    assert (output.text, output.error, output.finish_reason) == ("so far", error, FinishReason.ERROR)
    assert outputs.ended(item(), None, error, "w").text == ""
