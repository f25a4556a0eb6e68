"""Jobs on Ray: two nodes on one machine, of which one is killed with all that runs there."""

import signal
import sys
import time
from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch.jobs import Places, run_jobs
from experiment_kit.launch.options import LaunchOptions
from experiment_kit.launch.ray import Cluster, connect_cluster, submit_job
from experiment_kit.launch.supervision import WORKER_LOST

from tests.kit.launch.test_jobs import make_job, read_starts


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray of two nodes on this machine; the test is skipped where Ray is not installed."""
    ray = pytest.importorskip("ray", reason="experiment-kit[ray] is not installed")
    for name in ("USAGE_STATS_ENABLED", "enable_metrics_collection"):
        monkeypatch.setenv(f"RAY_{name}", "0")
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


@pytest.mark.timeout(240)
def test_every_job_ends_once_though_a_node_is_killed(nodes, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    jobs = [make_job(tmp_path, name, "ray") for name in "abcdef"]
    head = nodes.head_node.all_processes["raylet"][0].process.pid
    killed: list[int] = []

    def kill_node() -> None:
        while not killed:
            time.sleep(0.02)
            for job in jobs:
                path = job.log.with_name("node")
                if path.exists() and path.read_text() not in ("", str(head)):
                    node = psutil.Process(int(path.read_text()))
                    killed.append(node.pid)
                    for process in (node, *node.children(recursive=True)):
                        process.kill()
                    return

    handler = signal.getsignal(signal.SIGTERM)
    places, ended = connect_cluster("")(0), []
    assert signal.getsignal(signal.SIGTERM) == handler
    Thread(target=kill_node, daemon=True).start()
    run_jobs(jobs, places, lambda job, status: ended.append((job.name, status)))
    assert sorted(ended) == [(job.name, 0) for job in jobs]
    assert len(killed) == 1
    assert sum(len(read_starts(job)) for job in jobs) == len(jobs) + 1
    places.start_job(job := make_job(tmp_path, "g", "save"), [], False)
    while not job.log.with_name("ready").exists():
        time.sleep(0.1)
    places.stop_jobs()
    assert job.log.with_name("saved").exists()


def test_a_launcher_without_its_package_or_with_a_lost_address_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"ray is missing: pip install 'experiment-kit\[ray"):
        connect_cluster("")
    with pytest.raises(UserError, match="--address=a needs --launcher=ray"):
        assert LaunchOptions(address="a").make_places
    assert LaunchOptions().make_places is Places


def test_an_error_without_text_ends_its_job_alone(tmp_path) -> None:
    kinds = SimpleNamespace(RayError=StopIteration, RayTaskError=KeyError)
    ray = SimpleNamespace(wait=lambda x, timeout: [x], get=next, exceptions=kinds)
    (cluster := Cluster(ray, 1)).running[iter(())] = make_job(tmp_path, ".")
    assert [status for _, status in cluster.collect_ended()] == [WORKER_LOST]


def test_gpus_that_no_machine_has_are_named(tmp_path) -> None:
    ray = SimpleNamespace(nodes=lambda: [{"Resources": {"CPU": 8, "GPU": 2}, "Alive": True}])
    with pytest.raises(UserError, match="no machine of Ray has the 3 GPUs of a: add one"):
        submit_job(ray, make_job(tmp_path, "a", devices=3))
