"""Ray: one task a run, on the machines of a cluster that share a file system."""

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.launch.cluster import Task, log_error, make_task
from experiment_kit.launch.jobs import LOST, Job, read_threads

_SECONDS = 7  # in which a cluster must take a connection, and then speak as one
_SECONDS_TO_SAVE = 60


class RayCluster:
    """A connection to a Ray cluster, within its `with` block.

    `auto` is the cluster of this machine, `local` a new one on this machine alone. A task has a GPU
    for each device where there are GPUs, with its share of the cores, else a core for each.
    """

    def __init__(self, address: str = "auto") -> None:
        self.ray, self.address = import_ray(), address
        self.jobs: dict[Any, Job] = {}
        self.nodes: list[dict[str, float]] = []

    def __enter__(self) -> "RayCluster":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address == "local":
            options["include_dashboard"] = False
        place = find_ray_address(self.address)
        with suppress(ImportError):  # of a Ray without tokens; `ray start` itself uses one it finds
            from ray._private.authentication import authentication_token_setup as tokens

            tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        try:
            self.ray.init(address=place or "local", **options)
        except (ConnectionError, RuntimeError, self.ray.exceptions.RayError) as error:
            raise UserError(f"Ray at {place or self.address}: {error}") from error
        self.read_nodes()
        return self

    def __exit__(self, *_: Any) -> None:
        self.ray.shutdown()

    def read_nodes(self) -> None:
        """Read what the machines have, and what a task has for each device."""
        self.nodes = self._list_resources()
        shares = [int(node.get("CPU", 0) // node["GPU"]) for node in self.nodes if node.get("GPU")]
        self.num_gpus = int(bool(shares))
        self.num_cpus = read_threads() or max(1, min(shares, default=1))

    def _list_resources(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def count_places(self) -> int:
        """Count the devices of the machines that are alive, a core each where there are no GPUs."""
        needed = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        places = (
            min(int(node.get(name, 0) // number) for name, number in needed.items() if number)
            for node in self._list_resources()
        )
        return max(1, sum(places))

    def check_job(self, job: Job) -> None:
        """Raise UserError where no machine has the devices of a job: Ray would wait for ever."""
        self.choose_resources(job)

    def choose_resources(self, job: Job) -> dict[str, int]:
        """Return what a job asks of Ray.

        As on one machine, what needs more cores or memory than there are may run, with nothing
        beside it.
        """
        num_gpus = self.num_gpus * job.devices
        hosts = [n for n in self.nodes if n.get("CPU", 0) >= 1 and n.get("GPU", 0) >= num_gpus]
        if not hosts:
            needed = f"{num_gpus} GPUs and a core" if num_gpus else "a core"
            count = f"none of its {len(self.nodes)} machines has"
            raise UserError(
                f"Ray at {self.address} cannot run {job.name}: {count} {needed}; add a machine, or"
                " lower trainer.devices"
            )
        host = max(hosts, key=lambda node: node.get("memory", 0))
        return {
            "num_cpus": min(self.num_cpus * job.devices, int(host["CPU"])),
            "num_gpus": num_gpus,
            "memory": min(job.memory, int(host.get("memory", 0))),
        }

    def submit_jobs(self, jobs: Sequence[Job], period: float) -> list[Any]:
        """Submit one task a job; Ray repeats none, since the queue does."""
        function = self.ray.remote(_run_task)
        handles = [
            function.options(name=job.name, max_retries=0, **self.choose_resources(job)).remote(
                make_task(job, self.num_cpus, period)
            )
            for job in jobs
        ]
        self.jobs.update(zip(handles, jobs, strict=True))
        return handles

    def collect_ended(self, handles: Sequence[Any], seconds: float) -> dict[Any, int]:
        """Return the status of tasks that have ended; LOST where their worker or node died."""
        ended, _ = self.ray.wait(list(handles), num_returns=1, timeout=seconds)
        return {handle: self._read_status(handle) for handle in ended}

    def _read_status(self, handle: Any) -> int:
        try:
            return self.ray.get(handle)
        except self.ray.exceptions.RayError as error:
            log_error(self.jobs[handle], error)
            return LOST

    def cancel_tasks(self, handles: Sequence[Any]) -> None:
        """Interrupt the tasks, so that their jobs save, and wait for them."""
        for handle in handles:
            self.ray.cancel(handle, force=False)
        if handles:
            self.ray.wait(list(handles), num_returns=len(handles), timeout=_SECONDS_TO_SAVE)


def _run_task(task: Task) -> int:
    return task.run()


def import_ray() -> Any:
    """Import Ray, which only this launcher needs."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UserError(
            "the launcher ray needs the package ray: pip install 'allpass-kit[ray]'"
        ) from error
    return ray


def find_ray_address(address: str) -> str | None:
    """Return `host:port` of a cluster that answers; None for `local`.

    Raises UserError for a cluster that does not answer within seconds: Ray itself waits a minute.
    """
    import grpc  # of tensorboard, and of Ray
    from ray._private.services import canonicalize_bootstrap_address

    if address == "local":
        return None
    remedy = "start one by `ray start --head`, or name its address as host:port"
    try:
        place = canonicalize_bootstrap_address(address)
    except ConnectionError as error:
        raise UserError(f"no Ray cluster is on this machine: {remedy}") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{address!r} is no address of a Ray cluster: {remedy}") from error
    host, _, port = str(place).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
        with grpc.insecure_channel(place) as channel:
            grpc.channel_ready_future(channel).result(timeout=_SECONDS)
    except (OSError, grpc.FutureTimeoutError) as error:
        raise UserError(f"no Ray cluster answers at {place}: {remedy}") from error
    return place
