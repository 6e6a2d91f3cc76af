"""What a killed worker costs with RQ: two workers, which fork for each job, and jobs that may be tried again."""

import contextlib

import sleeping
from interruption import KINDS, Interruption
from redis import Redis
from rq import Queue, Retry
from workload import running, say, told

WORKER = ("rq", "worker", "--quiet")


class System:
    """See `interruption.System`."""

    def __init__(self, queue, arguments):
        self._queue = queue
        self._arguments = arguments
        self._open = []
        self._done = 0

    def submit(self, indices):
        """A job a request."""
        work = [self._arguments[name] for name in ("tokens", "tokens_per_s")]
        self._done = 0
        self._open = [
            self._queue.enqueue(sleeping.generate, self._arguments["folder"], index, *work, retry=Retry(max=3))
            for index in indices
        ]

    def finished(self):
        """Asks for those that were not there yet."""
        still = [job for job in self._open if job.get_status(refresh=True) != "finished"]
        self._done += len(self._open) - len(still)
        self._open = still
        return self._done


def main():
    """The forked child alone, then the whole worker."""
    arguments = told()
    url = arguments["broker_url"]
    with contextlib.ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(running(*WORKER, "--name", name, "--url", url, "default"))
        redis = stack.enter_context(Redis.from_url(url))
        run = Interruption(System(Queue(connection=redis), arguments), arguments)
        run.warm_up()  # both workers are up
        figures = {"undisturbed_s": run.undisturbed_s()}
        for kind, victims in KINDS.items():
            if kind in arguments["kinds"]:
                figures |= run.disturbed(kind, victims)
        say(figures)


if __name__ == "__main__":
    main()
