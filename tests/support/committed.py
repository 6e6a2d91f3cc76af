"""When the outputs of a job were committed, by the server's clock."""

from broker import codec
from broker.messages import Output
from driver import Job
from tests.support.cluster import Cluster


def committed(cluster: Cluster, job: Job) -> list[tuple[int, Output]]:
    """Each output of the job's stream, with its time in milliseconds. Not for outputs that were shared."""
    found: list[tuple[int, Output]] = []
    for entry, fields in cluster.redis.xrange(cluster.store.keys.job(job.id).outputs):
        packed = fields.get(b"p")
        outputs = codec.decode(list[Output], packed) if packed else [codec.decode(Output, fields[b"o"])]
        found += [(int(entry.partition(b"-")[0]), output) for output in outputs]
    return found
