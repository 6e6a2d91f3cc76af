from broker import claiming, codec
from broker.messages import Request, SamplingParams
from broker.records import ClaimedRequest

ONE, OTHER = (Request(prompt=text, params=SamplingParams()) for text in ("one", "the other"))


def reply(payloads, *, indices=None, attempts=None, saved=()):
    indices = indices or list(range(len(payloads)))
    packed = (indices, attempts or [0] * len(payloads), [len(payload) for payload in payloads])
    return [0, b"", -3, *map(codec.pack, packed), b"".join(payloads), list(saved)]


def test_requests_come_in_their_order_with_what_was_tried_and_saved():
    payloads = [codec.encode(OTHER), codec.encode(ONE)]
    batch = claiming.batch(reply(payloads, indices=[7, 3], attempts=[0, 2], saved=[b"3", codec.pack([5, 6])]))
    assert batch.requests == (
        ClaimedRequest(index=3, request=ONE, attempts=2, generated=(5, 6)),
        ClaimedRequest(index=7, request=OTHER),
    )
    assert (batch.cancelled, batch.deadline_s, batch.priority) == (False, None, -3)


def test_what_cannot_be_read_harms_no_other():
    good = codec.encode(ONE)
    batch = claiming.batch(reply([good, b"\xc1\x00", b"", good[:-1], good]))
    assert [item.index for item in batch.requests] == [0, 4]
    assert [index for index, _ in batch.unreadable] == [1, 2, 3]


def test_a_batch_with_nothing_to_do_is_empty():
    assert claiming.batch([1, b"1500", 10, *[codec.pack([])] * 3, b"", []]) == claiming.ClaimedBatch(
        requests=(), cancelled=True, deadline_s=1.5, priority=10
    )
