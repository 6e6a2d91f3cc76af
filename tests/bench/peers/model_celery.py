"""A real model behind plain Celery and celery-batches, with one worker."""

import os
from typing import Any

from resident import Item, Output, serve
from workload import in_lists, running, told

TIMEOUT_S = 300.0


def main() -> None:
    arguments = told()
    os.environ["PEER_URL"] = arguments["broker_url"]
    os.environ["MODEL_FOLDER"], os.environ["MODEL_THREADS"] = arguments["model"], str(arguments["threads"])
    with running("celery", "-A", "model_celery_app", "worker", "--concurrency", "1", "--loglevel", "WARNING"):
        serve(_way(arguments["way"]))


def _way(name: str) -> Any:
    from celery import group
    from model_celery_app import BATCH, generate_gathered, generate_list, generate_one

    def one(work: list[Item]) -> list[Output]:
        return group(generate_one.s(item) for item in work)().get(TIMEOUT_S)

    def lists(work: list[Item]) -> list[Output]:
        outputs = group(generate_list.s(part) for part in in_lists(work, BATCH))().get(TIMEOUT_S)
        return [output for part in outputs for output in part]

    def gathered(work: list[Item]) -> list[Output]:
        results = [generate_gathered.delay(item) for item in work]
        return [result.get(TIMEOUT_S) for result in results]

    return {"one": one, "lists": lists, "gathered": gathered}[name]


if __name__ == "__main__":
    main()
