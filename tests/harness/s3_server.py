"""An S3-compatible server (moto's) on this machine, for tests and measurements of stores at URLs."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import fsspec

BUCKET = "fleet"
START_S = 60.0


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Environment variables by which s3fs finds a fresh server with one empty bucket; it ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    settings = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(server, address)
        options = {"key": "nobody", "secret": "nothing", "endpoint_url": address}
        fsspec.filesystem("s3", **options, skip_instance_cache=True).mkdir(BUCKET)
        yield settings
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(server: "subprocess.Popen[bytes]", address: str) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise
        else:
            return
