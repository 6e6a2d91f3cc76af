"""Sleep, as far as it can be tried without a GPU: which tensors are told to move where, and what if they cannot."""

import pytest
import torch

from broker.messages import Request, SamplingParams
from gpu_worker.engine import resident
from gpu_worker.engine.errors import NoRoomError
from gpu_worker.engine.offload import Weights
from gpu_worker.engine.transformers import TransformersEngine


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(4))


def test_every_weight_and_buffer_moves_once_and_shared_ones_stay_shared():
    model = Tied()
    weights = Weights(model)
    assert weights.mib == round(80 / 2**20, 1)
    moved = []

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.to:  # nothing here has the device that is asked for
                moved.append(args[1])
                return args[0].clone()
            return func(*args, **(kwargs or {}))

    with Recorder():
        weights._move([torch.device("meta")] * 2)
    assert moved == [torch.device("meta")] * 2
    assert model.second.weight is model.first.weight
    assert weights.device == "cpu"


def test_weights_that_do_not_fit_any_more_are_all_offloaded_again(monkeypatch):
    model = Tied()
    weights = Weights(model)
    before = model.scale.clone()
    weights._homes = [torch.device("cpu"), torch.device("cuda:99")]
    with pytest.raises((RuntimeError, AssertionError)):
        weights.restore()
    assert {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert torch.equal(model.scale, before)


@pytest.fixture
def engine(second_model):
    made = TransformersEngine(second_model.model, second_model.tokenizer)
    yield made
    made.close()


def test_what_does_not_fit_is_refused_and_the_engine_goes_on(engine, monkeypatch):
    before = engine.capacity
    request = Request(params=SamplingParams(max_tokens=20, temperature=0.0), prompt="The river")
    engine.submit("a", request)

    with pytest.raises(NoRoomError, match=r"the memory has room for [0-9]+ tokens"):
        engine.resize(kv_tokens=10**12)
    assert engine.capacity == before

    loop, failures = resident.GenerationLoop, []

    def refuse(model, options, *rest):
        if options.max_requests == 7:
            failures.append(options)
            raise torch.OutOfMemoryError("no memory for so many")
        return loop(model, options, *rest)

    monkeypatch.setattr(resident, "GenerationLoop", refuse)
    with pytest.raises(NoRoomError, match="these sizes do not fit: no memory for so many"):
        engine.resize(slots=7)
    assert (len(failures), engine.capacity) == (1, before)

    engine.sleep()
    monkeypatch.setattr(engine._resident._weights, "restore", lambda: (_ for _ in ()).throw(RuntimeError("taken")))
    with pytest.raises(NoRoomError, match="cannot wake: taken"):
        engine.wake()
    with pytest.raises(NoRoomError, match="the engine sleeps"):
        engine.resize(slots=8)
    assert engine.step(0.05) == []
    monkeypatch.undo()
    engine.wake()
    done = []
    while not done:
        done = engine.step(1.0)
    assert (done[0].request_id, done[0].error, len(done[0].token_ids)) == ("a", None, 20)
