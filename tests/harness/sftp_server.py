"""A real OpenSSH server on this machine, for tests of stores at sftp:// URLs."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_S = 60.0
SFTP = Path("/usr/lib/openssh/sftp-server")
CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/home/.ssh/id_ed25519.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
Subsystem sftp {sftp}
"""


def install() -> None:
    """Debian's package, where it is not there yet; its own service stays off."""
    if shutil.which("sshd", path=_path()) and SFTP.exists():
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "--quiet"], check=True, env=env, stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "openssh-server"]
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)


@contextmanager
def sftp_server(folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The address of a fresh server, as URLs begin, and variables by which its only user knows it and is known."""
    install()
    keys = folder / "home" / ".ssh"
    keys.mkdir(parents=True, mode=0o700)
    for key in (folder / "host", keys / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host_key = " ".join((folder / "host.pub").read_text().split()[:2])
    (keys / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (folder / "sshd_config").write_text(CONFIG.format(port=port, folder=folder, sftp=SFTP))
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd leaves its privileges
    command = [str(shutil.which("sshd", path=_path())), "-D", "-e", "-f", str(folder / "sshd_config")]
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(server, port)
        yield f"sftp://127.0.0.1:{port}", {"HOME": str(folder / "home")}
    finally:
        server.terminate()
        server.wait(timeout=30)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


def _wait_for(server: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise
        else:
            return
