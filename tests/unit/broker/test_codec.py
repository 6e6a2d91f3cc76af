import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import codec
from broker.errors import MessageError
from broker.messages import FinishReason, Output, OutputError, Request, SamplingParams, Usage
from broker.records import JobRecord, Session

REQUEST = Request(prompt="hello", params=SamplingParams(max_tokens=3))

texts = st.text()
tokens = st.lists(st.integers(0, 2**31)).map(tuple)
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 1 << 20),
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 1 << 20),
    stop=st.lists(st.text(min_size=1), max_size=16).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
)
requests = st.builds(Request, params=params, prompt=st.text(min_size=1), return_input_ids=st.booleans())
outputs = st.builds(
    Output,
    index=st.integers(0, 2**40),
    text=texts,
    token_ids=tokens,
    finish_reason=st.sampled_from(FinishReason),
    usage=st.builds(Usage, prompt_tokens=st.integers(0, 2**40), completion_tokens=st.integers(0, 2**40)),
    error=st.none() | st.builds(OutputError, code=texts, message=texts),
    input_ids=st.none() | tokens,
    worker_id=texts,
)


@given(requests)
def test_a_request_comes_back_as_it_went(request):
    assert codec.decode(Request, codec.encode(request)) == request


@given(outputs)
def test_an_output_comes_back_as_it_went(output):
    assert codec.decode(Output, codec.encode(output)) == output


def wire(**changes):
    """REQUEST on the wire, with fields changed; None removes one."""
    fields = {**msgspec.msgpack.decode(codec.encode(REQUEST)), **changes}
    return msgspec.msgpack.encode({name: value for name, value in fields.items() if value is not None})


def test_an_unknown_field_is_ignored():
    assert codec.decode(Request, wire(colour="blue")) == REQUEST
    assert codec.decode(Request, wire(params={"max_tokens": 3, "colour": "blue"})) == REQUEST


def test_a_missing_field_is_refused_by_name():
    with pytest.raises(MessageError, match=r"not a valid Request: .*`params`"):
        codec.decode(Request, wire(params=None))
    with pytest.raises(MessageError, match=r"not a valid Output: .*`index`"):
        codec.decode(Output, msgspec.msgpack.encode({"finish_reason": "stop"}))


def test_a_wrong_type_is_refused_with_its_path():
    with pytest.raises(MessageError, match=r"`\$\.params\.max_tokens`"):
        codec.decode(Request, wire(params={"max_tokens": "3"}))


def test_a_value_outside_its_range_is_refused_too():
    with pytest.raises(MessageError, match="max_tokens must be a whole number"):
        codec.decode(Request, wire(params={"max_tokens": 0}))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81", b"not msgpack", codec.encode(REQUEST)[:-1]])
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(MessageError, match="not a valid Request"):
        codec.decode(Request, data)


def spoilt(places):
    """A request on the wire, with some bytes that are others."""
    data = bytearray(codec.encode(REQUEST))
    for place, byte in places:
        data[place % len(data)] = byte
    return bytes(data)


spoilt_bytes = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=3).map(spoilt)


@given(st.binary(max_size=64) | spoilt_bytes)
def test_bytes_are_a_request_that_can_be_sent_or_are_refused(data):
    try:
        request = codec.decode(Request, data)
    except MessageError as error:
        assert str(error).startswith("not a valid Request: ")
    else:
        assert codec.decode(Request, codec.encode(request)) == request


RECORD = {
    "id": "j",
    "model": "",
    "priority": "-2",
    "state": "running",
    "submitted": "3",
    "done": "1",
    "failed": "0",
    "dropped": "0",
    "prompt_tokens": "0",
    "completion_tokens": "0",
    "created_ms": "1",
    "touched_ms": "1",
    "finished_ms": "0",
    "cancelled": "1",
}


def fields(**changes):
    merged = {**RECORD, **changes}
    return {name.encode(): value.encode() for name, value in merged.items() if value is not None}


def test_a_redis_hash_becomes_a_record():
    record = codec.from_fields(JobRecord, fields(later_field="x"))
    assert (record.priority, record.submitted, record.state, record.cancelled) == (-2, 3, "running", True)


@pytest.mark.parametrize("changes", [{"submitted": None}, {"submitted": "many"}, {"state": "asleep"}])
def test_a_hash_that_lacks_or_mistypes_a_field_is_refused(changes):
    with pytest.raises(MessageError, match="not a valid JobRecord"):
        codec.from_fields(JobRecord, fields(**changes))


def test_a_hash_that_is_not_text_is_refused():
    with pytest.raises(MessageError, match="not a valid Session"):
        codec.from_fields(Session, {b"id": b"\xff"})


def test_what_cannot_be_sent_is_our_error():
    with pytest.raises(MessageError, match="no Output that can be sent"):
        codec.encode(Output(index=object(), finish_reason=FinishReason.STOP))
