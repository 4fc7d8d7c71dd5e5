"""A real Slurm of several nodes on this machine: munge, one slurmctld, a slurmd for each node, all gone at the end."""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
UP_CAP_S = 60
CONFIG = """
ClusterName=recoverssm
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=5
MailProg=/bin/true
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=1 State=UNKNOWN
PartitionName=cpu Nodes={nodes} Default=YES MaxTime=60 State=UP
"""


def install() -> None:
    """Debian's packages, where they are not there yet; their own services stay off."""
    if all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "--quiet"], check=True, env=env, stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES]
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def slurm_cluster(folder: Path, nodes: Sequence[str]) -> Iterator[dict[str, str]]:
    """Variables under which Slurm's commands speak with these nodes, each of one CPU, in the partition ``cpu``."""
    install()
    folder.mkdir(mode=0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    config, host = folder / "slurm.conf", socket.gethostname().partition(".")[0]
    port, *ports = _free_ports(1 + len(nodes))
    text = CONFIG.format(folder=folder, host=host, port=port, nodes=",".join(nodes), ports=",".join(map(str, ports)))
    config.write_text(text)
    env = {**os.environ, "SLURM_CONF": str(config)}
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        with (folder / f"{command[0]}.out").open("ab") as log:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge.pid"}
    files |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
    try:
        start("munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items()))
        _wait_for((folder / "munge.socket").exists, "munged")
        start("slurmctld", "-D")
        for node in nodes:
            start("slurmd", "-D", "-N", node)
        _wait_for(lambda: _idle(env) == len(nodes), f"{len(nodes)} idle nodes")
        try:
            yield env
        finally:
            _end_jobs(env)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()


def _idle(env: dict[str, str]) -> int:
    return len(_listed(env, "sinfo", "--noheader", "--Node", "--states=idle"))


def _listed(env: dict[str, str], *command: str) -> list[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.splitlines()


def _end_jobs(env: dict[str, str]) -> None:
    """Steps outlive the daemons, and wait for them for ever."""
    subprocess.run(["scancel", "--quiet", "--user", getpass.getuser()], env=env, check=False)
    _wait_for(lambda: not _listed(env, "squeue", "--noheader"), "no job")


def _wait_for(is_there: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + UP_CAP_S
    while not is_there():
        assert time.monotonic() < end_s, f"{what}: not there after {UP_CAP_S} s"
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
