"""Jobs on Ray: two nodes on one machine, of which workers and one node are killed."""

import socket
import sys
import time
from threading import Thread

import psutil
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch import ray as launcher
from experiment_kit.launch.cluster import ClusterQueue
from experiment_kit.launch.jobs import LOST
from experiment_kit.launch.launchers import choose_launcher
from experiment_kit.launch.ray import RayCluster, find_ray_address

from tests.kit.launch.test_jobs import make_job

PERIOD = 0.5
# notes each start and each end of a job, and the worker and the node that it runs under
WORK = """
import os, sys, time
from pathlib import Path
import psutil

place = Path(sys.argv[1])
worker, node = psutil.Process(os.getppid()), psutil.Process(os.getppid()).parent()
with (place / "starts").open("a") as file:
    file.write(f"{worker.pid} {node.pid}\\n")
time.sleep(1.5)
with (place / "ends").open("a") as file:
    file.write("x")
(place / "result.json").touch()
"""


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs the package ray: pip install 'allpass-kit\[ray\]'"):
        choose_launcher("ray", "", "runs")


@pytest.fixture
def ray():
    return pytest.importorskip("ray", reason="allpass-kit[ray] is not installed")


@pytest.mark.parametrize("kind", ["refuses", "is silent", "is no host"])
def test_an_address_that_does_not_answer_is_one_sentence_in_time(kind, ray, monkeypatch) -> None:
    began = time.monotonic()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "is silent":
            listener.listen()
            monkeypatch.setattr(launcher, "_SECONDS", 2)
        place = f"127.0.0.1:{listener.getsockname()[1]}" if kind != "is no host" else "nowhere"
        with pytest.raises(UserError, match=r"no (Ray cluster answers at|address of a Ray)"):
            choose_launcher("ray", place, "runs")
    assert time.monotonic() - began < 30  # on a loaded machine


@pytest.fixture
def nodes(ray, monkeypatch):
    """Start two nodes on this machine, and stop what is left of them."""
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
    cluster.shutdown()


@pytest.mark.timeout(240)
def test_every_job_ends_once_though_a_worker_and_a_node_are_killed(nodes, tmp_path) -> None:
    jobs = [make_job(tmp_path, name, WORK) for name in "abcdef"]
    head = nodes.head_node.all_processes["raylet"][0].process.pid
    killed: list[str] = []

    def read_starts(name: str) -> list[tuple[int, int]]:
        path = tmp_path / name / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(worker), int(node)) for worker, node in map(str.split, lines)]

    def kill_one(of_node: bool) -> None:
        """Kill the worker of a job that has begun, or its node with all that runs there."""
        while True:
            for name in sorted({*"abcdef"} - {*killed}):
                starts, path = read_starts(name), tmp_path / name / "starts"
                if not starts or time.time() - path.stat().st_mtime > 0.5:
                    continue
                worker, node = (psutil.Process(number) for number in starts[-1])
                if of_node and node.pid == head:
                    continue
                killed.append(name)
                for process in (node, *node.children(recursive=True)) if of_node else (worker,):
                    process.kill()
                return
            time.sleep(0.02)

    Thread(target=lambda: [kill_one(of_node) for of_node in (False, True)], daemon=True).start()
    ended, again = [], []
    assert (find_ray_address("auto"), find_ray_address("local")) == (nodes.address, None)
    with RayCluster("auto") as cluster:
        assert cluster.count_places() == 2
        queue = ClusterQueue(
            cluster,
            jobs,
            lambda job, status: ended.append((job.name, status)),
            on_retry=lambda job, status: again.append((job.name, status)),
            period=PERIOD,
        )
        queue.run()
    assert sorted(ended) == [(name, 0) for name in "abcdef"]
    assert len(killed) == 2
    assert {name for name, status in again if status == LOST} == {*killed}
    for name in "abcdef":
        assert (tmp_path / name / "ends").read_text() == "x"
        assert len(read_starts(name)) == 1 + (name in killed)
