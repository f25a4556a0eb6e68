"""Ray: one task a run, on the machines of a cluster that share a file system.

Several launchers may have the same plan: the lock of a run lets one process write it, and what is
finished is not trained again.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from experiment_kit.errors import UserError, convert_user_errors, import_library
from experiment_kit.launch.jobs import LOOK_AFTER, Job, Places, count_threads
from experiment_kit.launch.supervision import WORKER_LOST, end_processes, read_grace, start_process

_PASSED_ON = ("DATA_DIR", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONPATH")


def connect_cluster(address: str) -> Callable[[int], Places]:
    """Connect to a Ray cluster; return what makes its places."""
    ray = import_library("ray", "experiment-kit[ray]")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    prefix = f"no Ray at {address or 'auto'} takes jobs: try `ray start --head` or give host:port: "
    handler = signal.getsignal(signal.SIGTERM)
    with convert_user_errors(OSError, ValueError, RuntimeError, prefix=prefix):
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    signal.signal(signal.SIGTERM, handler)  # Ray sets its own, which leaves tasks running
    return partial(Cluster, ray)


class Cluster(Places):
    """The places of a Ray cluster: so many, or all its GPUs, or the runs that its cores can hold.

    A run whose worker or machine is lost resumes from its checkpoint.
    """

    def __init__(self, ray: Any, workers: int) -> None:
        self.ray, self.workers = ray, workers
        self.running: dict[Any, Job] = {}

    def count_free(self) -> int:
        """Count the places of the machines that the cluster has now."""
        found = self.ray.cluster_resources()
        places = found.get("GPU") or found.get("CPU", 1) // count_threads()
        taken = sum(job.devices for job in self.running.values())
        return (self.workers or int(places) or 1) - taken

    def start_job(self, job: Job, others: Sequence[Job], is_lost: bool) -> None:
        """Submit the task of a job."""
        if is_lost:
            time.sleep(5)  # Ray takes a while to see that a machine is dead
        self.running[submit_job(self.ray, job)] = job

    def collect_ended(self) -> Iterable[tuple[Job, int]]:
        """Wait for the end of a task."""
        for handle in self.ray.wait([*self.running], timeout=LOOK_AFTER)[0]:
            job = self.running.pop(handle)
            try:
                status = self.ray.get(handle)
            except self.ray.exceptions.RayError as error:
                with job.log.open("a", encoding="utf-8") as log:  # whose last line is printed
                    log.write("\nlost on Ray: " + str(error).partition("\n")[0] + "\n")
                status = 1 if isinstance(error, self.ray.exceptions.RayTaskError) else WORKER_LOST
            yield job, status

    def stop_jobs(self) -> None:
        """Interrupt the tasks, whose runs save."""
        for handle in self.running:
            self.ray.cancel(handle)
        if self.running:
            self.ray.wait([*self.running], num_returns=len(self.running), timeout=read_grace() + 10)


def submit_job(ray: Any, job: Job) -> Any:
    """Submit one task; raises UserError where no machine has its GPUs: Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    num_gpus = job.devices if any(node.get("GPU") for node in nodes) else 0
    if max(node.get("GPU", 0) for node in nodes) < num_gpus:
        raise UserError(f"no machine of Ray has the {num_gpus} GPUs of {job.name}: add one")
    given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    whole = replace(job, log=job.log.absolute(), output=job.output.absolute(), needs=None)
    cores = min(max(node.get("CPU", 1) for node in nodes), count_threads() * job.devices)
    task = ray.remote(num_cpus=int(cores), num_gpus=num_gpus, max_retries=0)(_run_task)
    return task.options(name=job.name).remote(whole, os.getcwd(), given)


def _run_task(job: Job, folder: str, environment: dict[str, str]) -> int:
    if job.output.is_file():
        return 0
    os.chdir(folder)
    os.environ.update(environment)
    variables = {"OMP_NUM_THREADS": str(count_threads())}
    process = start_process(job.arguments, job.log, variables, [job.arguments[1]])
    try:
        while process.is_alive():
            process.join(1)  # Ray tells a task between two calls that it is cancelled
    finally:  # it has ended, unless the task is cancelled: let the run save
        end_processes([process])
    return int(process.exitcode or 0)
