"""The real model through the whole path gives, token by token, what transformers' own `generate` gives."""

import os
from pathlib import Path

import pytest

from driver import Driver, DriverSettings, Request, SamplingParams

torch = pytest.importorskip("torch")

from gpu_worker.engine.loading import load_model  # noqa: E402

MODEL = "smollm2-135m"
TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at",
    "Roses are red, violets are",
    "El perro de mi vecino",
    "Dear Sir or Madam, I am writing to",
    "The three most important things in cooking are " * 6,
]
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about rain.",
    "What is 2 + 2?",
    "Why is the sky blue? Answer in two sentences.",
    "Translate 'good morning' into French.",
    "Give me a name for a grey cat.",
]


def requests():
    prompts = [{"prompt": text} for text in TEXTS]
    prompts += [{"messages": ({"role": "user", "content": text},)} for text in QUESTIONS]
    prompts += [{"input_ids": tuple(range(400, 430))}]
    for place, prompt in enumerate(prompts):
        yield prompt, 3 + 2 * (place % 5)


@pytest.fixture(scope="module")
def loaded():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other, and very long where the cores have other work
    yield _load()
    torch.set_num_threads(threads)


def _load():
    cache = Path(os.environ.get("STOKER_CACHE_DIR") or Path.home() / ".cache" / "stoker")
    return load_model(MODEL, cache_dir=cache, dtype="float32", device="cpu")


def generate(loaded, prompt, max_tokens):
    """The prompt's ids, and the new ids of a plain greedy `generate`."""
    if "messages" in prompt:
        ids = loaded.tokenizer.apply_chat_template(
            list(prompt["messages"]), add_generation_prompt=True, return_dict=True
        )["input_ids"]
    else:
        ids = list(prompt.get("input_ids") or loaded.tokenizer(prompt["prompt"])["input_ids"])
    inputs = torch.tensor([ids])
    with torch.inference_mode():
        out = loaded.model.generate(
            input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_tokens, do_sample=False
        )
    return ids, out[0, len(ids) :].tolist()


@pytest.mark.model
@pytest.mark.timeout(300)
def test_greedy_outputs_are_those_of_plain_generate(nothing_left, loaded):
    asked = list(requests())
    assert len(asked) >= 16
    settings = DriverSettings(model=MODEL, initial_worker_count=1)
    with Driver(settings, worker_environment={"STOKER_DTYPE": "float32", "STOKER_DEVICE": "cpu"}) as driver:
        driver.wait_until_ready(180)
        job = driver.client.submit(
            [
                Request(params=SamplingParams(max_tokens=n, temperature=0), stream=place % 2 == 0, **_typed(prompt))
                for place, (prompt, n) in enumerate(asked)
            ]
        )
        tasks = {
            place: driver.submit_task({**prompt, "max_new_tokens": n, "temperature": 0})
            for place, (prompt, n) in enumerate(asked)
            if place % 8 == 0  # a text, a chat, and token ids
        }
        deltas = list(job.stream(timeout=200))
        outputs = job.get(timeout=60)
        results = {place: driver.get_result(task, timeout=60) for place, task in tasks.items()}

    plain = [generate(loaded, prompt, max_tokens) for prompt, max_tokens in asked]
    assert [list(output.token_ids) for output in outputs] == [new for _, new in plain]
    texts = [loaded.tokenizer.decode(new, skip_special_tokens=True) for _, new in plain]
    assert [output.text for output in outputs] == texts
    streamed = ["".join(delta.text for delta in deltas if delta.index == place) for place in range(len(asked))]
    assert streamed == texts
    early = {delta.index for delta in deltas if delta.output is None}
    assert early
    assert all(place % 2 == 0 for place in early)
    for place, result in results.items():
        assert (result["input_ids"], result["output_ids"]) == plain[place]
        assert result["generated_text"] == texts[place]


def _typed(prompt):
    from broker.chat import chat_messages

    return {"messages": chat_messages(prompt["messages"])} if "messages" in prompt else prompt
