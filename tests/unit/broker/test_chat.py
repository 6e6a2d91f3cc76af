import pytest

from broker.chat import ChatMessage, chat_messages
from broker.errors import InvalidRequestError, UnsupportedParameterError


def test_chat_turns_may_be_dicts():
    assert chat_messages([{"role": "user", "content": "hi"}, ChatMessage(role="assistant", content="yes")]) == (
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="assistant", content="yes"),
    )


def test_a_turns_content_may_be_text_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat_messages([{"role": "user", "content": parts}]) == (ChatMessage(role="user", content="a\nb"),)
    with pytest.raises(UnsupportedParameterError, match=r"^messages\[0\]\.content\[0\]\.type 'image_url'"):
        chat_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_tool_calls_in_a_turn_are_refused_and_empty_ones_are_not():
    turn = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": []}
    assert chat_messages([turn]) == (ChatMessage(role="assistant", content="x"),)
    with pytest.raises(UnsupportedParameterError, match=r"^messages\[0\]\.tool_calls is not offered"):
        chat_messages([turn | {"tool_calls": [{"id": "1"}]}])


@pytest.mark.parametrize("turn", [{"role": "user"}, {"content": "x"}, {"role": "user", "content": 1}, "x"])
def test_a_wrong_chat_turn_is_refused_by_its_place(turn):
    with pytest.raises(InvalidRequestError, match=r"messages: .*\$\[1\]"):
        chat_messages([{"role": "user", "content": "hi"}, turn])


@pytest.mark.parametrize("turns", [5, "hi", {"role": "user"}, None])
def test_turns_that_are_no_list_are_refused(turns):
    with pytest.raises(InvalidRequestError, match="messages must be a list of turns"):
        chat_messages(turns)
