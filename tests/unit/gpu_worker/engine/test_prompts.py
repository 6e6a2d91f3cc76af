import pytest

from broker.chat import ChatMessage
from broker.errors import InvalidRequestError
from broker.messages import Request, SamplingParams
from gpu_worker.engine.errors import ContextLengthExceededError, require_fit
from gpu_worker.engine.prompts import PromptReader


class FakeTokenizer:
    def __init__(self, chat_template="yes"):
        self.chat_template = chat_template

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": list(text.encode("ascii"))}

    def decode(self, token_ids, skip_special_tokens=False):
        return bytes(token_ids).decode("ascii").removeprefix(" ")

    def apply_chat_template(self, turns, *, add_generation_prompt, tokenize, return_dict):
        assert add_generation_prompt
        assert tokenize
        assert return_dict
        if turns[0]["role"] == "alien":
            raise RuntimeError("roles must alternate")
        return {"input_ids": [len(turn["content"]) for turn in turns] + [0]}


def request(**prompt):
    return Request(params=SamplingParams(), **prompt)


def chat(*turns):
    return request(messages=tuple(ChatMessage(role=role, content=text) for role, text in turns))


def reader(**options):
    return PromptReader(FakeTokenizer(**options), vocabulary=100)


def test_each_form_of_prompt():
    assert reader().token_ids(request(prompt="ab")) == (97, 98)
    assert reader().token_ids(request(input_ids=(0, 99))) == (0, 99)
    assert reader().token_ids(chat(("user", "four"))) == (4, 0)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (request(input_ids=(1, 100)), r"input_ids\[1\] must be from 0 to 99, not 100"),
        (request(input_ids=(-1,)), r"input_ids\[0\]"),
        (chat(("alien", "x")), "roles must alternate"),
        (request(prompt="é"), "cannot be tokenised"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(bad, says):
    with pytest.raises(InvalidRequestError, match=says):
        reader().token_ids(bad)


def test_messages_need_a_chat_template():
    with pytest.raises(InvalidRequestError, match="no chat template"):
        reader(chat_template=None).token_ids(chat(("user", "x")))


@pytest.mark.parametrize(("prompt", "answer"), [(90, 10), (1, 99), (99, 1)])
def test_as_much_as_the_context_holds_is_let_through_and_no_more(prompt, answer):
    assert require_fit(prompt, answer, prompt + answer) is None
    with pytest.raises(ContextLengthExceededError):
        require_fit(prompt, answer, prompt + answer - 1)


def test_too_large_an_answer_is_told_what_fits():
    with pytest.raises(ContextLengthExceededError, match=r"at most 10$"):
        require_fit(90, 11, 100)


def test_too_long_a_prompt_is_told_the_context():
    with pytest.raises(ContextLengthExceededError, match="100 tokens, but the context holds 100"):
        require_fit(100, 1, 100)


@pytest.mark.parametrize("prompt", [{"prompt": "abc"}, {"input_ids": (97, 98, 99)}])
@pytest.mark.parametrize(("kept", "expected"), [(2, (98, 99)), (3, (97, 98, 99)), (9, (97, 98, 99))])
def test_a_truncated_prompt_keeps_its_end(prompt, kept, expected):
    short = Request(params=SamplingParams(truncate_prompt_tokens=kept), **prompt)
    assert reader().token_ids(short) == expected


def test_a_piece_keeps_the_space_that_a_text_would_lose():
    assert reader().decode([32, 97]) == "a"
    assert [reader().piece(token) for token in (32, 97)] == [" ", "a"]


def test_unknown_tokens_are_refused_with_field_and_place():
    reader().require_known("stop_token_ids", (0, 99))
    with pytest.raises(InvalidRequestError, match=r"^stop_token_ids\[1\] must be from 0 to 99, not 100"):
        reader().require_known("stop_token_ids", (0, 100))
