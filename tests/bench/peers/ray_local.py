"""Ray on this machine alone, in a folder of its own, telling nobody."""

import contextlib
import os

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"

import ray

OBJECT_STORE_BYTES = 256 * 2**20


@contextlib.contextmanager
def local_ray(folder, cpus=1):
    """A Ray of its own."""
    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    try:
        yield ray
    finally:
        ray.shutdown()
