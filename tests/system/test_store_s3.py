"""The S3 store against a real server, against none, and against one that fails."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from botocore.config import Config

from trainwright.stages.contract import UsageError
from trainwright.stages.store import ConditionFailedError, NotFoundError, StoreError, open_store, s3
from trainwright.stages.store.s3 import S3Store

PART = 5 << 20
"""The smallest part that S3 allows."""


def away(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some-secret")


def every_call(store: S3Store, tmp_path: Path) -> Iterator[object]:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    yield lambda: store.get("a")
    yield lambda: store.put("a", b"x")
    yield lambda: store.put("a", b"x", if_absent=True)
    yield lambda: store.put_file("a", source, sha256="")
    yield lambda: store.get_file("a", tmp_path / "target")
    yield lambda: store.head("a")
    yield lambda: store.verify("a", size=1, sha256="")
    yield lambda: list(store.list(""))
    yield lambda: store.delete("a")
    yield lambda: list(store.unfinished(""))


@pytest.mark.server
def test_a_large_file_goes_up_and_comes_down_in_parts(s3_server, tmp_path: Path) -> None:
    store = S3Store(s3_server.bucket, "multipart", part_size=PART)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(2 * PART + 12_345))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    store.put_file("big", source, sha256=digest)
    assert store.head("big").etag.rstrip('"').endswith("-3")
    store.verify("big", size=source.stat().st_size, sha256=digest)
    store.get_file("big", target, sha256=digest)
    assert target.read_bytes() == source.read_bytes()
    assert [*store.unfinished("")] == []


UPLOAD = """
import os, sys
from pathlib import Path
from trainwright.stages.store.s3 import S3Store
store = S3Store(sys.argv[1], "killed", part_size=5 << 20)
parts = 0
def count(**_):
    global parts
    parts += 1
    if parts == 2:
        os.kill(os.getpid(), 9)
store._client.meta.events.register("before-send.s3.UploadPart", count)
store.put_file("artifacts/a/b/big", Path(sys.argv[2]), sha256="")
"""


@pytest.mark.server
def test_a_killed_multipart_upload_is_no_object_and_can_be_discarded(
    s3_server, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 * PART))
    killed = subprocess.run([sys.executable, "-c", UPLOAD, s3_server.bucket, str(source)])
    assert killed.returncode == -9
    store = S3Store(s3_server.bucket, "killed")
    with pytest.raises(NotFoundError):
        store.head("artifacts/a/b/big")
    assert [*store.list("")] == []
    (leftover,) = store.unfinished("artifacts/")
    assert leftover.key == "artifacts/a/b/big"
    assert leftover.size % PART == 0
    store.discard(leftover)
    store.discard(leftover)
    assert [*store.unfinished("")] == []


@pytest.mark.server
def test_a_list_of_more_than_one_page_is_whole(s3_server) -> None:
    store = S3Store(s3_server.bucket, "pages")
    keys = [f"many/{number:04d}" for number in range(1005)]
    for key in keys:
        store.put(key, b"")
    assert [info.key for info in store.list("many/")] == keys


@pytest.mark.server
def test_two_stores_of_one_bucket_do_not_see_each_other(s3_server) -> None:
    one, other = open_store(s3_server.uri("one")), open_store(s3_server.uri("one-more"))
    one.put("a", b"1")
    assert [*other.list("")] == []
    assert [info.key for info in one.list("")] == ["a"]


@pytest.mark.server
def test_a_missing_bucket_is_a_usage_error_that_names_it(s3_server, tmp_path: Path) -> None:
    store = S3Store("no-such-bucket", "prefix")
    for call in every_call(store, tmp_path):
        with pytest.raises(UsageError, match=r"has no bucket 'no-such-bucket'; create it"):
            call()


@pytest.mark.server
@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_bad_credentials_are_a_usage_error_that_does_not_show_them(
    s3_server, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(wrong, "not-the-right-one")
    store = S3Store(s3_server.bucket, "prefix")
    for call in every_call(store, tmp_path):
        with pytest.raises(UsageError, match="refuses the credentials") as caught:
            call()
        shown = "".join(traceback_of(caught.value))
        for secret in ("not-the-right-one", *secrets_of(s3_server)):
            assert secret not in shown


def secrets_of(server) -> list[str]:
    return [server.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]


def traceback_of(error: BaseException) -> list[str]:
    import traceback

    return traceback.format_exception(error)


def test_no_credentials_are_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(UsageError, match="no credentials found; set AWS_ACCESS_KEY_ID"):
        S3Store("bucket").get("a")


def test_a_profile_that_does_not_exist_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(UsageError, match="nobody"):
        S3Store("bucket").get("a")


def test_an_endpoint_that_is_no_url_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    away(monkeypatch, "not a url")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL_S3"):
        S3Store("bucket").get("a")


@pytest.mark.timeout(120)
def test_a_server_that_is_not_there_is_a_store_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    away(monkeypatch, f"http://user:pass@127.0.0.1:{port}")
    store = S3Store("bucket")
    for call in every_call(store, tmp_path):
        with pytest.raises(
            StoreError, match=rf"127.0.0.1:{port} failed or cannot be reached"
        ) as it:
            call()
        assert "pass@" not in "".join(traceback_of(it.value))


@pytest.mark.timeout(120)
def test_a_server_that_never_answers_is_a_store_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        away(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(s3, "READ_TIMEOUT", 0.2)
        with pytest.raises(StoreError, match="ReadTimeoutError"):
            S3Store("bucket").get("a")


class Failing(BaseHTTPRequestHandler):
    """Answers each request with the same error, and counts."""

    status = 503
    code = "SlowDown"
    seen: ClassVar[list[str]] = []

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(self.command)
        body = f"<Error><Code>{self.code}</Code><Message>no</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def failing(status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    seen: list[str] = []
    handler = type("Handler", (Failing,), {"status": status, "code": code, "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        away(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}")
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (503, "ServiceUnavailable"), (429, "Throttling")],
)
def test_a_server_that_fails_is_asked_three_times_and_is_a_store_error(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(status, code, monkeypatch) as seen:
        with pytest.raises(StoreError, match=code):
            S3Store("bucket").get("a")
        assert len(seen) == 3


@pytest.mark.parametrize(("status", "code"), [(409, "ConditionalRequestConflict"), (412, "No")])
def test_a_conflict_is_a_lost_condition_where_there_was_one(
    status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(status, code, monkeypatch):
        store = S3Store("bucket")
        with pytest.raises(ConditionFailedError):
            store.put("a", b"x", if_absent=True)
        with pytest.raises(ConditionFailedError):
            store.delete("a", if_match='"x"')
        with pytest.raises(StoreError):
            store.put("a", b"x")


def test_a_put_on_an_etag_of_an_object_that_is_gone_is_a_lost_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AWS answers 404 NoSuchKey where other servers answer 412."""
    with failing(404, "NoSuchKey", monkeypatch), pytest.raises(ConditionFailedError):
        S3Store("bucket").put("a", b"x", if_match='"x"')


def test_a_server_without_conditional_writes_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = pytest.raises(UsageError, match="leases and manifests need it")
    with failing(501, "NotImplemented", monkeypatch), refused:
        S3Store("bucket").put("a", b"x", if_absent=True)


def test_a_refusal_that_no_retry_can_mend_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with failing(400, "InvalidRequest", monkeypatch) as seen:
        with pytest.raises(UsageError, match="InvalidRequest"):
            S3Store("bucket").put("a", b"x")
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("endpoint", "style"),
    [("http://minio:9000", "path"), ("https://s3.eu-central-1.amazonaws.com", "auto")],
)
def test_buckets_of_a_server_of_ones_own_stand_in_the_path(
    endpoint: str, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away(monkeypatch, endpoint)
    config: Config = S3Store("bucket")._client.meta.config
    assert config.s3["addressing_style"] == style


def test_a_process_makes_one_client_for_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    away(monkeypatch, "http://127.0.0.1:9")
    first, second = S3Store("bucket"), S3Store("other")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    third = S3Store("bucket")
    assert first._client is second._client
    assert first._client is not third._client
