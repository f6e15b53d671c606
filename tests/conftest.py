"""Fixtures that more than one folder of tests needs: a real S3 server, and a store of each kind."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from trainwright.stages.artifact import FileEntry, Manifest, content_digest
from trainwright.stages.contract import StageResult, utcnow
from trainwright.stages.store import Store, open_store

_PR_SET_PDEATHSIG = 1

# The same examples in every run, no folder in the tree, and no assertion about time.
settings.register_profile("house", database=None, deadline=None, derandomize=True)
settings.load_profile("house")


@dataclass(frozen=True)
class S3Server:
    """A running server, one bucket, and the variables by which a process finds both."""

    endpoint: str
    bucket: str
    environment: dict[str, str]

    def uri(self, prefix: str) -> str:
        return f"s3://{self.bucket}/{prefix}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def end_with_test_run() -> None:
    """In a child, before exec: the kernel ends it when the test run is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_seaweedfs(
    folder: Path, bucket: str, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    port = environment["AWS_ENDPOINT_URL_S3"].rpartition(":")[2]
    names = (
        "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
        "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc",
    )  # fmt: skip
    ports = [
        f"-{name}={number}" for name, number in zip(names, free_ports(len(names)), strict=True)
    ]
    command = [
        str(Path(sys.executable).with_name("weed")), "mini", f"-dir={folder}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={port}", *ports,
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false",
        "-master.telemetry=false", "-s3.autoCreateBucket=false", f"-bucket={bucket}",
    ]  # fmt: skip
    log = (folder / "weed.log").open("wb")
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
        start_new_session=True,
        preexec_fn=end_with_test_run,
    )


def wait_until_ready(process: subprocess.Popen[bytes], store: Store, log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            list(store.list(""))
            return
        except Exception as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.2)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS on loopback; the usual AWS variables of this process lead to it while it runs."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    bucket = f"tests-{uuid.uuid4().hex[:8]}"
    environment = {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{free_ports(1)[0]}",
        "AWS_ACCESS_KEY_ID": f"AK{secrets.token_hex(8)}",
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        process = start_seaweedfs(folder, bucket, environment)
        try:
            wait_until_ready(process, open_store(f"s3://{bucket}"), folder / "weed.log")
            yield S3Server(environment["AWS_ENDPOINT_URL_S3"], bucket, environment)
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.server)])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URI of an empty store of each kind."""
    if request.param == "file":
        return f"file://{tmp_path / 'store'}"
    server: S3Server = request.getfixturevalue("s3_server")
    return server.uri(f"t-{uuid.uuid4().hex[:12]}/store")


@pytest.fixture
def store(store_uri: str) -> Store:
    """An empty store of each kind."""
    return open_store(store_uri)


@pytest.fixture
def spoil(store: Store) -> Callable[[str, bytes], None]:
    """Put other bytes in an object's place behind the store's back, as a failing disk would.

    An S3 object keeps the digest in its metadata.
    """

    def spoil_object(key: str, data: bytes) -> None:
        path = store.local_path(key)
        if path is not None:
            path.write_bytes(data)
            return
        client, bucket, full = store._client, store.bucket, store._key(key)  # type: ignore[attr-defined]
        metadata = client.head_object(Bucket=bucket, Key=full)["Metadata"]
        client.put_object(Bucket=bucket, Key=full, Body=data, Metadata=metadata)

    return spoil_object


@pytest.fixture
def manifest_of() -> Callable[..., Manifest]:
    """A manifest over uploaded files."""

    def make(files: list[FileEntry], **fields: object) -> Manifest:
        values: dict[str, Any] = {
            "program": "corpus",
            "step": "corpus",
            "run_id": "run-1",
            "fingerprint": "f" * 64,
            "identity": {"program": "corpus"},
            "params": {},
            "inputs": {},
            "external": {},
            "files": files,
            "content": content_digest(files),
            "result": StageResult(metrics={"loss": 1.5}),
            "code_version": "0",
            "environment": {},
            "started_at": utcnow(),
            "ended_at": utcnow(),
        }
        return Manifest(**{**values, **fields})

    return make


@pytest.fixture
def output(tmp_path: Path) -> Callable[..., Path]:
    """A new folder as a stage leaves it, with the given files."""

    def make(**files: bytes) -> Path:
        folder = tmp_path / "outputs" / uuid.uuid4().hex
        for name, data in (files or {"a": b"alpha", "b": b"beta"}).items():
            path = folder / "deep" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    return make
