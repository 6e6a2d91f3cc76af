"""Submits prompts to a running Stoker and prints the outputs. Start one with `stoker up` first."""

from driver import Client, SamplingParams

with Client() as client:  # or Client("redis://…"); without a URL, the broker of `stoker up`
    prompts = ["The capital of France is", [{"role": "user", "content": "Name three colours."}]]
    job = client.submit(prompts, SamplingParams(temperature=0, max_tokens=32))
    print(job.id, job.state)

    for output in job.as_completed(timeout=60):  # as they finish
        print(f"[{output.index}] {output.text!r} {output.finish_reason} {output.usage.completion_tokens} tokens")

    for output in job.get(timeout=60):  # the same, in request order
        print(output.error.message if output.error else output.text)

    print(job.progress())
