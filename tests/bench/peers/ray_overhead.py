"""Requests per second of Ray: one actor, called for each request or for each list of 64; or Ray Data's map_batches."""

import time

from ray_local import local_ray, ray
from workload import LIST, check, in_lists, make_prompts, say, told


class Echo:
    """One request, or a list."""

    def echo(self, prompt):
        """Give back what came."""
        return prompt

    def __call__(self, batch):
        """A batch of Ray Data."""
        return {"text": batch["item"]}


def one_by_one(actor, prompts):
    """A call a request."""
    return ray.get([actor.echo.remote(prompt) for prompt in prompts])


def lists(actor, prompts):
    """A call a list."""
    return [text for part in ray.get([actor.echo.remote(part) for part in in_lists(prompts)]) for text in part]


def map_batches(_actor, prompts):
    """A dataset through one actor."""
    found = ray.data.from_items(prompts).map_batches(Echo, batch_size=LIST, compute=ray.data.ActorPoolStrategy(size=1))
    return [row["text"] for row in found.take_all()]


def measure(send, actor, count):
    """Requests per second, from the first call to the last result checked."""
    prompts = make_prompts(count)
    started_s = time.perf_counter()
    texts = send(actor, prompts)
    check(sorted(texts) if send is map_batches else texts, sorted(prompts) if send is map_batches else prompts)
    return {"requests_per_s": count / (time.perf_counter() - started_s)}


if __name__ == "__main__":
    arguments = told()
    send = {"calls": one_by_one, "lists": lists, "data": map_batches}[arguments["way"]]
    if send is map_batches:
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
    with local_ray(arguments["folder"], cpus=2):
        actor = None if send is map_batches else ray.remote(num_cpus=1)(Echo).remote()
        measure(send, actor, 256)  # the actor is up, and warm
        say(measure(send, actor, arguments["requests"]))
