"""Reads a job's outputs from its stream, in completion order, from any point on; and its text as it comes.

A Redis that lost its last second may give an output again that was read before: a reader gives each request's once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from broker import codec
from broker.connection import BLOCK_LIMIT_S, RedisClient, broker_errors
from broker.deltas import TextDelta
from broker.keys import Keys
from broker.messages import Output, OutputSource

Entries: TypeAlias = Sequence[tuple[bytes, Mapping[bytes, bytes]]]  # of a stream: ids and fields

START = "0-0"
PAGE = 256  # entries of the stream, of up to 32 outputs each


class OutputStream:
    """A reader's place in one job's outputs; `position` can be kept and used to go on later."""

    def __init__(self, client: RedisClient, keys: Keys, url: str, job_id: str, position: str = START) -> None:
        self._redis = client
        self.key = keys.job(job_id).outputs
        self._url = url
        self._given = bytearray()  # a bit for each request
        self.position = position

    def read(self, timeout_s: float) -> list[Output]:
        """The next outputs, waiting up to `timeout_s` seconds for the first; empty when none came."""
        block_ms = int(min(timeout_s, BLOCK_LIMIT_S) * 1000)
        with broker_errors(self._url):
            # BLOCK 0 would wait for ever.
            reply = self._redis.xread({self.key: self.position}, count=PAGE, block=block_ms or None)
        if not reply:
            return []
        return self.take(reply[0][1])

    def take(self, entries: Entries) -> list[Output]:
        """The outputs in the stream's next entries."""
        self.position = entries[-1][0].decode()
        return [output for output in _outputs(entries) if self._is_new(output.index)]

    def has_more(self) -> bool:
        """Whether there are outputs beyond the reader's place."""
        with broker_errors(self._url):
            return bool(self._redis.xrange(self.key, min=f"({self.position}", count=1))

    def trim(self) -> None:
        """Drop what has been read; other readers of the job lose it too."""
        milliseconds, sequence = self.position.split("-")
        with broker_errors(self._url):
            self._redis.xtrim(self.key, minid=f"{milliseconds}-{int(sequence) + 1}", approximate=False)

    def drain(self) -> Iterator[Output]:
        """Every output there is now, from the reader's place on."""
        before = ""
        while before != self.position:
            before = self.position
            yield from self.read(0)

    def _is_new(self, index: int) -> bool:
        place, bit = index >> 3, 1 << (index & 7)
        if place >= len(self._given):
            self._given.extend(bytes(place + 1 - len(self._given)))
        is_new = not self._given[place] & bit
        self._given[place] |= bit
        return is_new


class LiveStream:
    """A reader's place in one job's deltas and outputs, from the beginning on."""

    def __init__(self, client: RedisClient, keys: Keys, url: str, job_id: str) -> None:
        self._redis = client
        self._url = url
        self._outputs = OutputStream(client, keys, url, job_id)
        self._deltas_key = keys.job(job_id).deltas
        self._deltas_position = START

    def read(self, timeout_s: float) -> list[TextDelta | Output]:
        """What came next, waiting up to `timeout_s` seconds for the first; empty when nothing came.

        Deltas are before outputs; each kind is in the order in which it came.
        """
        outputs = self._outputs
        places = {self._deltas_key: self._deltas_position, outputs.key: outputs.position}
        block_ms = int(min(timeout_s, BLOCK_LIMIT_S) * 1000)
        with broker_errors(self._url):
            reply = self._redis.xread(places, count=PAGE, block=block_ms or None)
        items: list[TextDelta | Output] = []
        for key, entries in sorted(reply, key=lambda stream: stream[0]):  # "deltas", then "outputs"
            if key.decode() == outputs.key:
                items += outputs.take(entries)
            else:
                self._deltas_position = entries[-1][0].decode()
                items += [codec.decode(TextDelta, fields[b"d"]) for _, fields in entries]
        return items

    def has_more(self) -> bool:
        """Whether there are outputs beyond the reader's place."""
        return self._outputs.has_more()


def _outputs(entries: Entries) -> list[Output]:
    outputs: list[Output] = []
    for _, fields in entries:
        if b"p" in fields:
            outputs += codec.decode(list[Output], fields[b"p"])
        else:
            outputs.append(_output(fields))
    return outputs


def _output(fields: Mapping[bytes, bytes]) -> Output:
    """An entry's output; one that was generated for another request says for which it is here, and where it is from."""
    output = codec.decode(Output, fields[b"o"])
    if b"i" not in fields:
        return output
    source = OutputSource(fields[b"s"].decode())
    return msgspec.structs.replace(output, index=int(fields[b"i"]), source=source)
