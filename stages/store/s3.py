"""An S3 bucket as the object store: AWS, or any server that knows conditional writes.

Endpoint, region and credentials are those that boto3 finds: AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_PROFILE, and so on. An error never shows a credential.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as boto
from botocore.config import Config

from trainwright.stages.contract import UsageError
from trainwright.stages.store.base import (
    ConditionFailedError,
    NotFoundError,
    ObjectInfo,
    StoreError,
    Unfinished,
    check_digest,
    check_key,
    check_prefix,
    check_size,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART_SIZE = 16 << 20
"""Bytes. A larger file goes up, and comes down, in parts of this size."""
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
"""Seconds without a byte, for each of botocore's three tries."""
_PART_THREADS = 4
_DIGEST = "sha256"
"""Name of the metadata field that carries an uploaded file's digest."""

_clients: dict[tuple[Any, ...], S3Client] = {}
_clients_lock = threading.Lock()


class S3Store:
    """Objects below a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str = "", *, part_size: int = PART_SIZE) -> None:
        self.bucket = bucket
        self.prefix = f"{check_key(prefix)}/" if prefix else ""
        self.root = f"s3://{bucket}/{prefix}".rstrip("/")
        self._transfer = TransferConfig(
            multipart_threshold=part_size,
            multipart_chunksize=part_size,
            max_concurrency=_PART_THREADS,
        )
        with self._errors(""):
            self._client = _client(self.root)

    def _key(self, key: str) -> str:
        return self.prefix + check_key(key)

    def get(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and its etag."""
        full = self._key(key)
        with self._errors(key):
            answer = self._client.get_object(Bucket=self.bucket, Key=full)
            return answer["Body"].read(), answer["ETag"]

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write a small object in one request, with the condition in its header."""
        full = self._key(key)
        condition: dict[str, Any] = {}
        if if_absent:
            condition["IfNoneMatch"] = "*"
        elif if_match is not None:
            condition["IfMatch"] = if_match
        with self._errors(key, conditional=bool(condition)):
            answer = self._client.put_object(Bucket=self.bucket, Key=full, Body=data, **condition)
        return answer["ETag"]

    def put_file(self, key: str, path: Path, *, sha256: str, move: bool = False) -> None:
        """Upload, in parts if it is large, with the digest in the object's metadata.

        Every part also carries the SDK's checksum, which the server compares.
        """
        full = self._key(key)
        with self._errors(key), path.open("rb") as file:
            self._client.upload_fileobj(
                file,
                self.bucket,
                full,
                ExtraArgs={"Metadata": {_DIGEST: sha256}},
                Config=self._transfer,
            )

    def get_file(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Download to a temporary file, check its digest, rename."""
        full = self._key(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
        try:
            with self._errors(key), temporary.open("wb") as file:
                self._client.download_fileobj(self.bucket, full, file, Config=self._transfer)
            if sha256 is not None:
                with temporary.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                check_digest(self.root, key, found, sha256)
            temporary.replace(path)
        except NotFoundError:
            self._require_bucket()
            raise
        finally:
            temporary.unlink(missing_ok=True)

    def head(self, key: str) -> ObjectInfo:
        """Size, etag and time."""
        return self._head(key)[0]

    def _head(self, key: str) -> tuple[ObjectInfo, str | None]:
        full = self._key(key)
        try:
            with self._errors(key):
                answer = self._client.head_object(Bucket=self.bucket, Key=full)
        except NotFoundError:
            self._require_bucket()
            raise
        info = ObjectInfo(
            key, answer["ContentLength"], answer["ETag"], answer["LastModified"].timestamp()
        )
        return info, answer["Metadata"].get(_DIGEST)

    def _require_bucket(self) -> None:
        # The answer to a HEAD has no body to tell a missing bucket from a missing object.
        try:
            with self._errors(""):
                self._client.head_bucket(Bucket=self.bucket)
        except NotFoundError:
            raise self._no_bucket() from None

    def verify(self, key: str, *, size: int, sha256: str) -> None:
        """Compare the size and the digest in the metadata; where there is none, read and hash."""
        info, found = self._head(key)
        check_size(self.root, info, size)
        check_digest(self.root, key, found or self._hash(key), sha256)

    def _hash(self, key: str) -> str:
        digest = hashlib.sha256()
        with self._errors(key):
            answer = self._client.get_object(Bucket=self.bucket, Key=self._key(key))
            for chunk in answer["Body"].iter_chunks(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in the order of their keys.

        Sorted here: not every server lists in that order (SeaweedFS 4.48 gives b/a before b-a).
        """
        yield from sorted(self._pages(prefix), key=lambda info: info.key)

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + check_prefix(prefix)
        )
        with self._errors(prefix):
            for page in pages:
                for entry in page.get("Contents", []):
                    yield ObjectInfo(
                        entry["Key"].removeprefix(self.prefix),
                        entry["Size"],
                        entry["ETag"],
                        entry["LastModified"].timestamp(),
                    )

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Delete an object; a server that ignores the condition deletes it in any case."""
        full = self._key(key)
        condition: dict[str, Any] = {} if if_match is None else {"IfMatch": if_match}
        try:
            with self._errors(key, conditional=bool(condition)):
                self._client.delete_object(Bucket=self.bucket, Key=full, **condition)
        except NotFoundError:
            return

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """Multipart uploads that were neither completed nor aborted."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self.bucket, Prefix=self.prefix + check_prefix(prefix)
        )
        with self._errors(prefix):
            for page in pages:
                for upload in page.get("Uploads", []):
                    yield Unfinished(
                        upload["Key"].removeprefix(self.prefix),
                        upload["UploadId"],
                        self._parts_size(upload["Key"], upload["UploadId"]),
                        upload["Initiated"].timestamp(),
                    )

    def _parts_size(self, full: str, upload: str) -> int:
        pages = self._client.get_paginator("list_parts").paginate(
            Bucket=self.bucket, Key=full, UploadId=upload
        )
        try:
            return sum(part["Size"] for page in pages for part in page.get("Parts", []))
        except boto.ClientError as error:
            if _code(error)[0] == "NoSuchUpload":
                return 0
            raise

    def discard(self, leftover: Unfinished) -> None:
        """Abort a multipart upload; its parts go."""
        try:
            with self._errors(leftover.key):
                self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=self._key(leftover.key), UploadId=leftover.id
                )
        except NotFoundError:
            return

    def local_path(self, key: str) -> Path | None:
        """None: an S3 object is not a local file."""
        return None

    @contextmanager
    def _errors(self, key: str, *, conditional: bool = False) -> Iterator[None]:
        try:
            yield
        except boto.ClientError as error:
            raise self._answered(error, key, conditional) from None
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.TokenRetrievalError):
            raise UsageError(
                f"store {self.root}: no credentials found; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            ) from None
        except _MISCONFIGURED as error:
            raise UsageError(f"store {self.root}: {error}; see the AWS_* variables") from None
        except (boto.BotoCoreError, Boto3Error, OSError) as error:
            raise self._unreachable(error, key) from None

    def _unreachable(self, error: Exception, key: str) -> StoreError | UsageError:
        if isinstance(error, FileNotFoundError):
            return UsageError(f"store {self.root}: there is no file {error.filename!r} to upload")
        if isinstance(error, OSError) and not isinstance(error, boto.BotoCoreError):
            return StoreError(f"store {self.root}: {error.strerror or error} at {key!r}")
        return StoreError(
            f"store {self.root}: {self._where()} failed or cannot be reached "
            f"({type(error).__name__}) at {key!r}"
        )

    def _answered(self, error: boto.ClientError, key: str, conditional: bool) -> Exception:
        code, status = _code(error)
        if code == "NoSuchBucket":
            return self._no_bucket()
        if conditional and (status in (409, 412) or code == "NoSuchKey"):
            return ConditionFailedError(f"{self.root}/{key} exists, is gone or changed")
        if status == 404:
            return NotFoundError(f"{self.root}/{key}")
        if status == 501:
            return UsageError(
                f"store {self.root}: {self._where()} does not know {error.operation_name}"
                f"{' with a condition: leases and manifests need it' if conditional else ''}"
            )
        if status >= 500 or status in (408, 409, 412, 429) or code in _FOR_NOW:
            return StoreError(f"store {self.root}: {self._where()} answers {code} at {key!r}")
        if status in (401, 403) or code in _CREDENTIALS:
            return UsageError(
                f"store {self.root}: {self._where()} refuses the credentials ({code}); set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to ones that may "
                f"read and write the bucket {self.bucket!r}"
            )
        return UsageError(
            f"store {self.root}: {self._where()} refuses {error.operation_name} of {key!r} ({code})"
        )

    def _no_bucket(self) -> UsageError:
        return UsageError(
            f"store {self.root}: {self._where()} has no bucket {self.bucket!r}; create it, or name "
            "another in TRAINWRIGHT_STORE"
        )

    def _where(self) -> str:
        return _host(self._client.meta.endpoint_url) if hasattr(self, "_client") else "the SDK"


_MISCONFIGURED = (
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.ConfigNotFound,
    boto.NoRegionError,
    boto.InvalidRegionError,
    boto.InvalidConfigError,
    boto.InvalidRetryModeError,
    boto.InvalidMaxRetryAttemptsError,
)
_FOR_NOW = frozenset({"BadDigest", "RequestTimeout", "SlowDown", "Throttling", "IncompleteBody"})
_CREDENTIALS = frozenset({"InvalidAccessKeyId", "InvalidToken", "ExpiredToken"})


def _code(error: boto.ClientError) -> tuple[str, int]:
    answer = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(answer.get("Error", {}).get("Code", "")), int(status)


def _host(endpoint: str) -> str:
    """`host:port` of an endpoint, without a user and password that may stand before it."""
    return urlsplit(endpoint).netloc.rpartition("@")[2]


def _client(root: str) -> S3Client:
    """One client for each environment and process: its making takes longer than a request."""
    variables = sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_"))
    key = (os.getpid(), *variables)
    with _clients_lock:
        if key not in _clients:
            try:
                _clients[key] = _make_client()
            except ValueError:
                raise UsageError(
                    f"store {root}: the endpoint is not a URL; see AWS_ENDPOINT_URL_S3"
                ) from None
        return _clients[key]


def _make_client() -> S3Client:
    session = boto3.session.Session()
    client = session.client("s3", config=_config("auto"))
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return client
    # A server of one's own has seldom a DNS name for each bucket.
    return session.client("s3", config=_config("path"))


def _config(addressing: Literal["auto", "path"]) -> Config:
    return Config(
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        retries={"mode": "standard"},
        max_pool_connections=16,
        s3={"addressing_style": addressing},
    )
