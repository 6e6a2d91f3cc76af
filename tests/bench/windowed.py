"""A client that runs very many prompts through a bounded window, and counts every output.

`python -m tests.bench.windowed COUNT` prints its seconds, its largest memory, and what was missing or came twice.
"""

import resource
import sys
import time

import msgspec

from driver import Client, SamplingParams

PROMPT = "lorem ips " * 50
PARAMS = SamplingParams(max_tokens=8, temperature=1.0)  # greedy ones that are alike would be generated once


class Windowed(msgspec.Struct, frozen=True, kw_only=True):
    """What one run found."""

    seconds: float
    client_mib: float
    missing: int
    twice: int
    failed: int


def run(count: int) -> Windowed:
    """Run so many prompts of 500 bytes, all different, on STOKER_BROKER_URL."""
    seen = bytearray(count)
    twice = failed = 0
    client = Client()
    start_s = time.monotonic()
    prompts = (f"{number:08d} {PROMPT[:491]}" for number in range(count))
    for output in client.run(prompts, PARAMS):
        twice += seen[output.index]
        failed += output.error is not None
        seen[output.index] = 1
    seconds = time.monotonic() - start_s
    client.close()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Windowed(seconds=seconds, client_mib=peak_mib, missing=seen.count(0), twice=twice, failed=failed)


if __name__ == "__main__":
    print(msgspec.json.encode(run(int(sys.argv[1]))).decode(), flush=True)
