import socket
from itertools import islice

import pytest

from broker.errors import ConfigurationError
from gpu_worker.device import Placement, candidates, usable_gpus

HOST = socket.gethostname()


def placements(device="auto", name="", gpus=()):
    return [(item.name, item.device) for item in islice(candidates(device, name, gpus), 4)]


def test_each_free_gpu_is_tried_in_turn():
    assert placements(gpus=(0, 2)) == [(f"gpu0@{HOST}", "cuda:0"), (f"gpu2@{HOST}", "cuda:2")]


def test_without_a_gpu_there_are_as_many_cpu_workers_as_one_likes():
    assert placements() == [(f"cpu{i}@{HOST}", "cpu") for i in range(4)]
    assert len(list(candidates("auto", "", ()))) > 100


def test_the_cpu_can_be_wanted_on_a_host_with_gpus():
    assert placements("cpu", gpus=(0,))[0] == (f"cpu0@{HOST}", "cpu")


def test_a_certain_gpu_can_be_wanted():
    assert placements("cuda:1", gpus=(0, 1)) == [(f"gpu1@{HOST}", "cuda:1")]


def test_a_name_of_ones_own():
    assert placements("cpu", "one") == [(f"one@{HOST}", "cpu")]
    assert placements("cpu", "one@there") == [("one@there", "cpu")]
    assert placements("cuda:0", "one@there", (0,)) == [("one@there", "cuda:0")]


@pytest.mark.parametrize("name", ["two words", "a@b@c", "@host", "a@", "a/b", "ä", "a:b"])
def test_a_name_that_could_break_a_key_is_refused(name):
    with pytest.raises(ConfigurationError, match="worker_name"):
        placements("cpu", name)


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:0,", "CPU", ""])
def test_a_device_that_cannot_be_read_is_refused(device):
    with pytest.raises(ConfigurationError, match="device="):
        placements(device, gpus=(0,))


@pytest.mark.parametrize(("gpus", "there"), [((), "none"), ((0, 1), "0, 1")])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(gpus, there):
    with pytest.raises(ConfigurationError, match=f"are: {there}$"):
        placements("cuda:7", gpus=gpus)


def test_a_placement_pins_its_process():
    assert Placement(name="x", gpus=(3,)).environment() == {
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert Placement(name="x").environment()["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("1", (1,)),
        ("2,0", (2, 0)),
        (" 0 , 1 ", (0, 1)),
        ("1,7", (1,)),
        ("-1", ()),
        ("0,-1,1", (0,)),
    ],
)
def test_only_gpus_that_cuda_may_see_are_used(visible, gpus):
    assert usable_gpus(3, visible) == gpus


def test_gpus_named_by_uuid_are_refused():
    with pytest.raises(ConfigurationError, match="CUDA_VISIBLE_DEVICES"):
        usable_gpus(3, "GPU-8f0c")
