"""transformers' continuous batching by itself: no queue, all requests handed over at once in the same process."""

import torch
from resident import Item, Output, serve
from smollm import Model
from workload import told

RESULT_TIMEOUT_S = 120.0


def main() -> None:
    arguments = told()
    torch.set_num_threads(arguments["threads"])
    model = Model(arguments["model"])
    manager = model.continuous(arguments["sizes"])

    def generate(work: list[Item]) -> list[Output]:
        for place, item in enumerate(work):
            manager.add_request(model.read(item["prompt"]), request_id=str(place), max_new_tokens=item["max_tokens"])
        found: dict[str, Output] = {}
        while len(found) < len(work):
            result = manager.get_result(timeout=RESULT_TIMEOUT_S)
            if result is None or result.error is not None:
                raise RuntimeError(result.error if result is not None else f"nothing within {RESULT_TIMEOUT_S:g} s")
            found[result.request_id] = model.output(list(result.generated_tokens))
        return [found[str(place)] for place in range(len(work))]

    serve(generate)
    manager.stop(block=True, timeout=30.0)


if __name__ == "__main__":
    main()
