"""Jobs on Ray: two nodes on one machine, of which workers and one node are killed."""

import socket
import time
from dataclasses import replace
from threading import Thread

import psutil
import pytest
from experiment_kit.errors import UserError
from experiment_kit.launch import ray as launcher
from experiment_kit.launch.jobs import LOST
from experiment_kit.launch.launchers import choose_launcher
from experiment_kit.launch.ray import RayCluster, find_ray_address

from tests.kit.launch.clusters import RecordingQueue
from tests.kit.launch.test_jobs import TOUCH, make_job

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


GIB = 2**30


@pytest.mark.parametrize(("nodes", "devices", "needs"), [
    ([{"CPU": 4, "memory": 9 * GIB}], 1, (1, 0, 6)),
    ([{"CPU": 4, "memory": 5 * GIB}], 9, (4, 0, 5)),  # more than there is: all of a machine
    ([{"CPU": 16, "GPU": 4, "memory": 9 * GIB}], 2, (8, 2, 6)),
    ([{"CPU": 64, "memory": 99 * GIB}, {"CPU": 8, "GPU": 2, "memory": 3 * GIB}], 2, (8, 2, 3)),
    ([{"CPU": 16, "GPU": 4}], 5, "cannot run a: none of its 1 machines has 5 GPUs and a core"),
    ([{"memory": GIB}, {"CPU": 0}], 1, "cannot run a: none of its 2 machines has a core"),
])  # fmt: skip
def test_a_task_asks_for_its_devices_on_one_machine(
    nodes, devices, needs, ray, tmp_path, monkeypatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(RayCluster, "_list_resources", lambda _: nodes)
    cluster = RayCluster("auto")
    cluster.read_nodes()
    job = replace(make_job(tmp_path, "a", ""), memory=6 * GIB, devices=devices)
    if isinstance(needs, str):
        with pytest.raises(UserError, match=needs):
            cluster.check_job(job)
        return
    found = cluster.choose_resources(job)
    assert (found["num_cpus"], found["num_gpus"], found["memory"] / GIB) == needs


def test_a_task_has_the_threads_that_the_user_chose(ray, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(RayCluster, "_list_resources", lambda _: [{"CPU": 8, "memory": 9 * GIB}])
    cluster = RayCluster("auto")
    cluster.read_nodes()
    assert cluster.choose_resources(make_job(tmp_path, "a", ""))["num_cpus"] == 3
    assert cluster.count_places() == 2


@pytest.mark.timeout(240)
def test_a_connection_serves_several_calls_and_names_devices_that_no_machine_has(
    nodes, tmp_path
) -> None:
    launch, ended = choose_launcher("ray", "", "runs"), []
    for name in "ab":
        launch([make_job(tmp_path, name, TOUCH)], 0, lambda job, n: ended.append((job.name, n)))
    assert ended == [("a", 0), ("b", 0)]
    nodes.add_node(num_cpus=1, num_gpus=2, object_store_memory=80 * 2**20)
    began = time.monotonic()
    with pytest.raises(UserError, match="cannot run c: none of its 3 machines has 3 GPUs and a co"):
        launch([replace(make_job(tmp_path, "c", TOUCH), devices=3)], 0, print)
    assert time.monotonic() - began < 30


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
    assert (find_ray_address("auto"), find_ray_address("local")) == (nodes.address, None)
    with RayCluster("auto") as cluster:
        assert cluster.count_places() == 2
        queue = RecordingQueue(cluster, jobs)
        queue.run()
    assert sorted(queue.ended) == [(name, 0) for name in "abcdef"]
    assert len(killed) == 2
    assert {name for name, status in queue.again if status == LOST} == {*killed}
    for name in "abcdef":
        assert (tmp_path / name / "ends").read_text() == "x"
        assert len(read_starts(name)) == 1 + (name in killed)
