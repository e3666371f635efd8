"""A real Slurm in a temporary folder: started as the current user, with pretended GPUs, and ended again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ctld_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
MinJobAge=600
KillWait=3
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""


def missing() -> list[str]:
    """Name the programs that are not installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=SBIN)]


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Slurm:
    """One controller and some nodes on this host, with GPUs that are names only.

    Args:
        folder: an empty folder with a short path (it holds a socket).
        gpus: GPUs of each node.
        nodes: how many nodes.
    """

    def __init__(self, folder: Path, gpus: int = 4, nodes: int = 1):
        self.folder = folder
        self.names = [f"n{i}" for i in range(1, nodes + 1)]
        self._daemons: list[subprocess.Popen] = []
        host = socket.gethostname().split(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        conf = CONF.format(host=host, user=user, folder=folder, ctld_port=free_port())
        cpus = 8
        for name in self.names:
            conf += (
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} "
                f"CPUs={cpus} RealMemory=20000 Gres=gpu:fake:{gpus}\n"
            )
        every = ",".join(self.names)
        conf += f"PartitionName=gpu Nodes={every} Default=YES MaxTime=INFINITE State=UP PriorityTier=1\n"
        conf += f"PartitionName=urgent Nodes={every} MaxTime=INFINITE State=UP PriorityTier=10\n"
        (folder / "slurm.conf").write_text(conf)
        (folder / "dev").mkdir()
        for i in range(gpus):
            (folder / f"dev/gpu{i}").symlink_to("/dev/null")
        (folder / "gres.conf").write_text(
            f"Name=gpu Type=fake File={folder}/dev/gpu[0-{gpus - 1}] Flags=nvidia_gpu_env\n"
        )
        for name in ("state", *(f"spool-{n}" for n in self.names), "bin"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        # The plugin's job step drops SLURM_CONF before its inner srun: only a test's Slurm is outside /etc.
        srun = folder / "bin/srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}/bin:{SBIN}"}

    def start(self) -> None:
        """Start everything, and wait until all nodes are idle."""
        folder = self.folder
        munge = [f"--{name}={folder}/munge{end}" for name, end in (
            ("key-file", ".key"), ("socket", ".socket"), ("pid-file", ".pid"), ("log-file", ".log"), ("seed-file", ".seed")
        )]  # fmt: skip
        self._spawn("munged", "--foreground", "--force", *munge)
        self._wait(lambda: (folder / "munge.socket").exists(), "munged")
        self._spawn("slurmctld", "-D", "-c")
        self._wait(lambda: self.ask("sinfo", "-h", check=False), "slurmctld")
        for name in self.names:
            self._spawn("slurmd", "-D", "-N", name)
        self._wait(
            lambda: (
                self.ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%t").split() == ["idle"] * len(self.names)
            ),
            "slurmd",
        )

    def stop(self) -> None:
        """Cancel all jobs and end everything that was started here."""
        self.ask("scancel", "--user", str(os.getuid()), check=False)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def ask(self, *words: str, check: bool = True) -> str:
        """Call a client; they block for minutes where the controller is gone, so not for long."""
        try:
            done = subprocess.run(
                words, env=os.environ | self.env, capture_output=True, text=True, timeout=15, check=check
            )
            return done.stdout
        except subprocess.TimeoutExpired:
            return ""

    def jobs(self) -> list[list[str]]:
        """List the jobs that wait or run: id, name, state."""
        return [line.split("|") for line in self.ask("squeue", "-h", "-o", "%i|%j|%T").splitlines()]

    def _spawn(self, *words: str) -> None:
        path = shutil.which(words[0], path=SBIN)
        with (self.folder / f"{words[0]}.out").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [path, *words[1:]],
                    env=os.environ | self.env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, ready, what: str) -> None:
        deadline = time.monotonic() + 30
        while not ready():
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"{p.name}: {p.read_text()[-1500:]}" for p in self.folder.glob("*.[lo][ou][gt]")
                )
                raise RuntimeError(f"{what} did not start:\n{logs}")
            time.sleep(0.1)
