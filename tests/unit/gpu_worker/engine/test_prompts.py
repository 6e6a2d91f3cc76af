import pytest

from broker.errors import InvalidRequestError
from broker.messages import ChatMessage, Request, SamplingParams
from gpu_worker.engine.errors import ContextLengthExceededError, require_fit
from gpu_worker.engine.prompts import PromptReader


class FakeTokenizer:
    def __init__(self, chat_template="yes"):
        self.chat_template = chat_template

    def __call__(self, text):
        return {"input_ids": list(text.encode("ascii"))}

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


def test_what_fits_is_let_through():
    require_fit(90, 10, 100)


def test_too_large_an_answer_is_told_what_fits():
    with pytest.raises(ContextLengthExceededError, match=r"at most 10$"):
        require_fit(90, 11, 100)


def test_too_long_a_prompt_is_told_the_context():
    with pytest.raises(ContextLengthExceededError, match="100 tokens, but the context holds 100"):
        require_fit(100, 1, 100)
