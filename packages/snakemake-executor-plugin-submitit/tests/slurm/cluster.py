"""A real Slurm on this machine: virtual nodes, fake GPUs, preemption, accounting if wanted.

    python cluster.py install      Debian's packages, as root
    python cluster.py up [none]    start it; `none` is without accounting
    python cluster.py down

No systemd, no cgroups. All of it lies in one folder; clients need SLURM_CONF from `Cluster.env`.
GPUs are links to /dev/null, because only character devices make Slurm set CUDA_VISIBLE_DEVICES.
Partitions: `main`, and `low` and `grace`, which it preempts, without time to stop and with 15 s of
it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

NODES, CPUS, GPUS, MEMORY_MB = 2, 8, 2, 16000
PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "slurmdbd", "mariadb-server"]

#: cred_expire is also the time before a requeued job may start again; 2 minutes unless told.
SLURM_CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/run/munge.sock,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=10
CompleteWait=0
MinJobAge=300
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
TmpFS=/tmp
{accounting}
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF {limits}
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 {limits}
PartitionName=grace Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=15 {limits}
"""
LIMITS = "DefMemPerCPU=500 DefaultTime=10 MaxTime=1440 State=UP"
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={root}/run/munge.sock
AccountingStorageTRES=gres/gpu
"""
SLURMDBD_CONF = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.sock
PidFile={root}/run/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql_port}
StorageUser=root
StoragePass=unused
StorageLoc=slurm_acct_db
"""


def until(what: str, seconds: float, condition: Callable[[], object]) -> None:
    """Wait for a condition; TimeoutError names what did not happen."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.1)


def alive(pid: int, name: str) -> bool:
    """Whether a process of that name lives; a zombie does not (a container's init may not reap)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return status.startswith(f"Name:\t{name}\n") and "\nState:\tZ" not in status


class Cluster:
    """One Slurm. It can lose and regain its parts while tests look on; several may run at once."""

    def __init__(self, number: int = 0) -> None:
        self.port = 16810 + 20 * number
        self.root = Path(tempfile.gettempdir()) / f"slurm-test-{number}"
        self.env = os.environ | {"SLURM_CONF": str(self.root / "etc/slurm.conf")}

    def ask(self, *command: object, check: bool = True, timeout: float = 60) -> str:
        """Run a command of Slurm; what it printed."""
        done = subprocess.run(
            list(map(str, command)), env=self.env, capture_output=True, text=True, timeout=timeout
        )
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.strip()}")
        return done.stdout

    def answers(self) -> bool:
        try:
            return "is UP" in self.ask("scontrol", "ping", check=False, timeout=3)
        except subprocess.TimeoutExpired:
            return False

    def ready(self) -> bool:
        states = self.ask("sinfo", "-h", "-N", "-o", "%N %t", check=False).split("\n")
        usable = {line for line in states if line.endswith((" idle", " mix", " alloc"))}
        return len(usable) == NODES

    def up(self, accounting: bool = True) -> None:
        """Start it anew. A machine whose own name does not resolve is refused by Slurm."""
        self.down()
        for name in ("etc", "state", "spool", "log", "run", "dev"):
            (self.root / name).mkdir(parents=True)
        self.root.chmod(0o755)
        for number in range(GPUS):
            (self.root / f"dev/gpu{number}").symlink_to("/dev/null")
        ports = {"port": self.port, "dbd_port": self.port + 1, "sql_port": self.port + 2}
        nodes = "\n".join(
            f"NodeName=n{n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={self.port + 9 + n} "
            f"CPUs={CPUS} RealMemory={MEMORY_MB} Gres=gpu:{GPUS} State=UNKNOWN"
            for n in range(1, NODES + 1)
        )
        storage = ACCOUNTING if accounting else "AccountingStorageType=accounting_storage/none\n"
        storage = storage.format(root=self.root, **ports)
        etc = self.root / "etc"
        named = {"accounting": storage, "nodes": nodes, "limits": LIMITS}
        conf = SLURM_CONF.format(root=self.root, **named, **ports)
        (etc / "slurm.conf").write_text(conf)
        devices = f"{self.root}/dev/gpu[0-{GPUS - 1}]"
        (etc / "gres.conf").write_text(f"NodeName=n[1-{NODES}] Name=gpu File={devices}\n")
        (etc / "slurmdbd.conf").write_text(SLURMDBD_CONF.format(root=self.root, **ports))
        (etc / "slurmdbd.conf").chmod(0o600)
        self.ask("mungekey", "-c", "-k", self.root / "run/munge.key")
        run, log = self.root / "run", self.root / "log"
        munged = {"key-file": run / "munge.key", "socket": run / "munge.sock"}
        munged |= {"pid-file": run / "munged.pid", "log-file": log / "munged.log"}
        munged |= {"seed-file": run / "munged.seed", "num-threads": "2"}
        self.ask("munged", *(f"--{key}={value}" for key, value in munged.items()))
        if accounting:
            self._start_accounting()
        self.start_controller()
        for number in range(1, NODES + 1):
            self.start_node(number)
        until("nodes idle", 30, self.ready)

    def _start_accounting(self) -> None:
        data, socket = self.root / "mysql", self.root / "run/mysql.sock"
        common = ["--no-defaults", "--user=root", f"--datadir={data}", "--innodb-log-file-size=8M"]
        common.append(f"--tmpdir={self.root}/run")  # several at once disturb each other in /tmp
        normal = "--auth-root-authentication-method=normal"
        self.ask("mariadb-install-db", *common, "--skip-test-db", normal)
        flags = f"--socket={socket} --pid-file={self.root}/run/mariadbd.pid --port={self.port + 2}"
        flags += " --bind-address=127.0.0.1 --skip-grant-tables --innodb-buffer-pool-size=64M"
        flags += " --innodb-flush-log-at-trx-commit=0 --innodb-lock-wait-timeout=900"
        with (self.root / "log/mariadbd.log").open("w") as log:
            subprocess.Popen(
                ["mariadbd", *common, *flags.split(), "--skip-log-bin", "--performance-schema=OFF"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ping = ["mariadb-admin", "--no-defaults", f"--socket={socket}", "ping"]
        until("mariadbd", 30, lambda: "alive" in self.ask(*ping, check=False))
        self.start_slurmdbd()
        for words in ("cluster test", "account test Cluster=test", "user root Account=test"):
            self.ask("sacctmgr", "-Q", "-i", "add", *words.split(), check=False)

    def start_slurmdbd(self) -> None:
        self.ask("slurmdbd")
        listed = ["sacctmgr", "-n", "-i", "list", "account", "format=account"]
        until("slurmdbd", 30, lambda: "root" in self.ask(*listed, check=False))

    def start_controller(self) -> None:
        self.ask("slurmctld")
        until("slurmctld", 30, self.answers)

    def start_node(self, number: int) -> None:
        self.ask("slurmd", "-N", f"n{number}")

    def end(self, daemon: str, number: int = 0, name: signal.Signals = signal.SIGTERM) -> None:
        """End a daemon, by the pid it wrote down; a number says which slurmd."""
        path = self.root / "run" / f"{daemon}{f'-n{number}' if number else ''}.pid"
        if not path.exists():
            return
        pid = int(path.read_text())
        if alive(pid, daemon):
            os.kill(pid, name)
            try:
                until(f"end of {daemon}", 15, lambda: not alive(pid, daemon))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
        path.unlink(missing_ok=True)

    def job_processes(self, job: str = "") -> list[int]:
        """slurmstepds and tasks of this cluster, which outlive slurmd; or those of one job."""
        found, mark = [], f"SLURM_CONF={self.env['SLURM_CONF']}\0".encode()
        wanted = f"\0SLURM_JOB_ID={job}{chr(0) if job else ''}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ = b"\0" + (folder / "environ").read_bytes()
                step = not job and (folder / "comm").read_text() == "slurmstepd\n"
            except OSError:
                continue
            if mark in environ and (step or wanted in environ):
                found.append(int(folder.name))
        return [pid for pid in found if pid != os.getpid()]

    def down(self) -> None:
        """End all of it, and remove its folder."""
        if not self.root.exists():
            return
        if self.answers():
            self.ask("scancel", "-f", "-u", "root", check=False)
        for number in range(1, NODES + 1):
            self.end("slurmd", number)
        self.end("slurmctld")
        for pid in self.job_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in ("slurmdbd", "mariadbd", "munged"):
            self.end(daemon)
        shutil.rmtree(self.root)


def install() -> None:
    """Debian's packages, without starting the daemons that they would start."""
    if os.getuid() or not shutil.which("apt-get"):
        sys.exit("error: to install Slurm this needs root, and apt-get (Debian or Ubuntu)")
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:  # as in some containers; Slurm refuses such a machine
        with Path("/etc/hosts").open("a") as hosts:
            hosts.write(f"127.0.1.1 {socket.gethostname()}\n")
    missing = [
        p for p in PACKAGES if subprocess.run(["dpkg", "-s", p], capture_output=True).returncode
    ]
    if not missing:
        return
    policy = Path("/usr/sbin/policy-rc.d")
    made = not policy.exists()
    if made:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        subprocess.run([*command, *missing], env=env, check=True)
    finally:
        if made:
            policy.unlink()


if __name__ == "__main__":
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    verbs = {
        "install": install,
        "up": lambda: Cluster().up(accounting="none" not in sys.argv),
        "down": Cluster().down,
    }
    if verb not in verbs:
        sys.exit(__doc__)
    try:
        verbs[verb]()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        logs = Cluster().root / "log"
        sys.exit(f"error: `{verb}` of Slurm failed on this machine: {error}; see {logs}")
