"""Ray: one task a run, on the machines of a cluster that share a file system.

Several launchers may have the same plan: the lock of a run lets one process write it, and what is
finished is not trained again.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from experiment_kit.errors import UserError, convert_user_errors, import_library
from experiment_kit.launch.jobs import (
    LOOK_AFTER,
    Job,
    Tries,
    count_threads,
    end_job,
    find_ready,
    start_process,
    warn_hung,
)
from experiment_kit.launch.supervision import LOST, end_processes, read_grace

_PASSED_ON = ("DATA_DIR", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONPATH")
_LONGEST_PAUSE = 60  # seconds, after a loss
_SECONDS = 7  # a cluster must take a connection by then; Ray itself waits a minute

LaunchJobs = Callable[..., None]  # with the arguments of `run_jobs`


def choose_launcher(name: str, address: str) -> LaunchJobs | None:
    """Return what runs jobs on a Ray cluster, once it has answered; None for this machine.

    Raises UserError without Ray, and for a cluster that does not answer.
    """
    if name == "local":
        if address:
            raise UserError(f"--address={address} needs --launcher=ray")
        return None
    ray = import_library("ray", "allpass-kit[ray]")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    remedy = "start one by `ray start --head`, or name its address as host:port"
    prefix = f"no Ray cluster answers at {address or 'auto'}: {remedy}: "
    with convert_user_errors(OSError, ValueError, RuntimeError, prefix=prefix):
        if ":" in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    return partial(run_on_ray, ray)


def run_on_ray(
    ray: Any,
    jobs: Sequence[Job],
    workers: int,
    on_end: Callable[[Job, int], None],
    on_start: Callable[[Job], None] = lambda job: None,
    on_retry: Callable[[Job, int], None] = lambda job, status: None,
) -> None:
    """Run jobs as `run_jobs` does, in `workers` places or in all that the cluster has.

    A run whose worker or machine is lost resumes from its checkpoint, after a pause that grows with
    each loss: Ray takes a while to see that a machine is dead.
    """
    waiting, tries = list(jobs), Tries()
    running: dict[Any, Job] = {}
    try:
        while waiting or running:
            found = ray.cluster_resources()  # GPUs, or the runs that the cores can hold
            places = workers or int(found.get("GPU") or found.get("CPU", 1) // count_threads()) or 1
            free = places - sum(job.devices for job in running.values())
            while job := find_ready(waiting, free if running else None):
                waiting.remove(job)
                running[submit_job(ray, job)] = job
                free -= job.devices
                on_start(job)
            if not running:
                return
            for handle in ray.wait([*running], timeout=LOOK_AFTER)[0]:
                job = running.pop(handle)
                status = _read_status(ray, handle, job)
                end_job(job, status, tries, waiting, on_end, on_retry)
                if status == LOST:
                    time.sleep(min(2 ** tries[job.log, True], _LONGEST_PAUSE))
            warn_hung(running.values())
    finally:  # none runs, unless a signal ends this process
        for handle in running:
            ray.cancel(handle)  # interrupts the task, whose run saves
        if running:
            ray.wait([*running], num_returns=len(running), timeout=read_grace() + 10)


def submit_job(ray: Any, job: Job) -> Any:
    """Submit one task; raises UserError where no machine has its GPUs: Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    num_gpus = job.devices if any(node.get("GPU") for node in nodes) else 0
    if max(node.get("GPU", 0) for node in nodes) < num_gpus:
        raise UserError(f"no machine of Ray has the {num_gpus} GPUs of {job.name}: add one")
    given = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    whole = replace(job, log=job.log.absolute(), output=job.output.absolute(), needs=None)
    cores = min(max(node.get("CPU", 1) for node in nodes), count_threads() * job.devices)
    options = {"num_cpus": int(cores), "num_gpus": num_gpus}
    task = ray.remote(_run_task).options(name=job.name, max_retries=0, **options)
    return task.remote(whole, os.getcwd(), given)


def _run_task(job: Job, folder: str, environment: dict[str, str]) -> int:
    if job.output.is_file():
        return 0
    os.chdir(folder)
    os.environ.update(environment)
    process = start_process(job, {})
    try:
        process.join()
    finally:  # it has ended, unless the task is cancelled: let the run save
        end_processes([process])
    return int(process.exitcode or 0)


def _read_status(ray: Any, handle: Any, job: Job) -> int:
    try:
        return ray.get(handle)
    except ray.exceptions.RayError as error:
        reason = str(error).partition("\n")[0]
        with job.log.open("a", encoding="utf-8") as log:  # failure.json has its last line
            log.write(f"\nlost on Ray: {reason}\n")
        return 1 if isinstance(error, ray.exceptions.RayTaskError) else LOST
