"""Launchers: what runs jobs, on this machine or on many."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiment_kit.errors import UserError
from experiment_kit.launch.cluster import ClusterQueue
from experiment_kit.launch.jobs import Job
from experiment_kit.launch.ray import RayCluster, find_ray_address, import_ray
from experiment_kit.launch.slurm import SlurmCluster

LaunchJobs = Callable[..., None]  # with the arguments of `run_jobs`


def choose_launcher(name: str, address: str, folder: str) -> LaunchJobs | None:
    """Return what runs jobs on many machines, after a look at them; None for this machine.

    Raises UserError for a package that is missing, and for machines that do not answer.
    """
    if name == "local":
        if address:
            raise UserError(f"--address={address} needs --launcher=ray or --launcher=slurm")
        return None
    if name == "ray":
        import_ray()
        find_ray_address(address or "auto")
        return RayLauncher(address or "auto")
    return partial(run_on_slurm, SlurmCluster(Path(folder) / "slurm", address))


class RayLauncher:
    """A Ray cluster, whose connection and workers serve all calls until this process ends."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cluster: RayCluster | None = None

    def __call__(self, jobs: Sequence[Job], workers: int, *callbacks: Any) -> None:
        """Run jobs as `run_jobs` does."""
        if self.cluster is None:
            self.cluster = RayCluster(self.address).__enter__()  # Ray leaves it at the exit
        self.cluster.read_nodes()  # some may have come
        ClusterQueue(self.cluster, jobs, *callbacks).run(workers)


def run_on_slurm(cluster: SlurmCluster, jobs: Sequence[Job], workers: int, *callbacks: Any) -> None:
    """Run jobs as `run_jobs` does, on Slurm."""
    ClusterQueue(cluster, jobs, *callbacks).run(workers)
