"""What tests of several launchers share: a queue that records, a Ray of two nodes."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from experiment_kit.launch.cluster import Cluster, ClusterQueue
from experiment_kit.launch.jobs import Job

PERIOD = 0.5  # of a lease


class RecordingQueue(ClusterQueue):
    """A queue that keeps the last status of each job, and those after which one started again."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], period: float = PERIOD) -> None:
        super().__init__(cluster, jobs, self.record_end, on_retry=self.record_retry, period=period)
        self.ended: list[tuple[str, int]] = []
        self.again: list[tuple[str, int]] = []

    def record_end(self, job: Job, status: int) -> None:
        self.ended.append((job.name, status))

    def record_retry(self, job: Job, status: int) -> None:
        self.again.append((job.name, status))


def start_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a Ray of two nodes on this machine, and stop what is left of it."""
    ray = pytest.importorskip("ray", reason="allpass-kit[ray] is not installed")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_enable_metrics_collection", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # whatever tokens are on this machine
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 * 2**20, "memory": 8 * 2**30}
    head = {"num_cpus": 1, "include_dashboard": False, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, **memory)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)  # another one may run here
    yield cluster
    ray.shutdown()
    cluster.shutdown()
