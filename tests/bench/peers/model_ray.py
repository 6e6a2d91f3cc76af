"""A real model in a Ray actor that runs transformers' continuous batching: one call a request."""

import asyncio
from typing import Any

import torch
from ray_local import local_ray, ray
from resident import Item, Output, serve
from smollm import Model
from workload import told

TIMEOUT_S = 300.0


class Engine:
    """An async actor: all calls that are open share the loop's steps."""

    def __init__(self, folder: str, sizes: dict[str, int], threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = Model(folder)
        self._manager = self._model.continuous(sizes)
        self._count = 0

    async def generate(self, item: Item) -> Output:
        self._count += 1
        request_id = str(self._count)
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._manager.register_result_handler(request_id, ended.set_result)
        self._manager.add_request(
            self._model.read(item["prompt"]), request_id=request_id, max_new_tokens=item["max_tokens"]
        )
        result = await ended
        if result.error is not None:
            raise RuntimeError(result.error)
        return self._model.output(list(result.generated_tokens))


def main() -> None:
    arguments = told()
    with local_ray(arguments["folder"], cpus=1):
        engine = ray.remote(Engine).remote(arguments["model"], arguments["sizes"], arguments["threads"])

        def generate(work: list[Item]) -> list[Output]:
            return ray.get([engine.generate.remote(item) for item in work], timeout=TIMEOUT_S)

        serve(generate)


if __name__ == "__main__":
    main()
