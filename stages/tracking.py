"""MLflow as stages use it: batched, in the background, and never the reason that a stage fails.

Figures also go to `metrics.jsonl` beside the progress file, so nothing is lost when MLflow is away.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.stages.contract import TrackingIds
from trainwright.stages.settings import without_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

Row = tuple[str, float, int, int]
"""Name, value, time (ms since the epoch), step."""

_FLUSH_SECONDS = 5.0
_BATCH = 900
"""MLflow takes at most 1000 metrics a call."""
_MAX_BUFFER = 200_000
_BACK_OFF_SECONDS = 30.0
"""After a failure MLflow is left in peace for so long."""
_CLOSE_SECONDS = 20.0
"""So long a finished stage waits for its last figures to arrive."""
_LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Where the user has not set them. MLflow's own: 120 s, seven retries."""
_REFUSED = frozenset({"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST"})
"""MLflow's error codes for what it will never take."""


class Tracker:
    """Metrics of one stage, buffered and sent in batches by a thread, so that training never waits.

    `ids=None` keeps the local file alone.
    """

    def __init__(self, ids: TrackingIds | None, path: Path) -> None:
        self._ids = ids
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)
        self._buffer: list[Row] = []
        self._tags: dict[str, Any] = {}
        self._changing = threading.Lock()
        self._talking = threading.Lock()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._client: MlflowClient | None = None
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0
        self._warned: set[str] = set()
        self._cut = 0
        self._refused = 0

    def log(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log figures at a step. Non-finite ones stay in the file; MLflow would refuse the batch."""
        now = time.time()
        clean = {name: float(value) for name, value in metrics.items()}
        try:
            self._file.write(json.dumps({"time": round(now, 3), "step": step, **clean}) + "\n")
        except (OSError, ValueError) as error:
            self._warn("file", "figures cannot be written to %s: %s", self._file.name, error)
        if self._ids is None:
            return
        stamp = int(now * 1000)
        rows = [(name, value, stamp, step) for name, value in clean.items() if math.isfinite(value)]
        with self._changing:
            self._buffer.extend(rows)
            if (excess := len(self._buffer) - _MAX_BUFFER) > 0:
                self._cut += excess
                del self._buffer[:excess]
            full = len(self._buffer) >= _BATCH
        self._start()
        if full:
            self._wake.set()

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags on the stage's run."""
        if self._ids is None:
            return
        with self._changing:
            self._tags.update(tags)
        self._start()

    def flush(self) -> None:
        """Send what is buffered, now; what cannot be sent stays for the next time."""
        if self._ids is None or time.monotonic() < self._retry_at:
            return
        try:
            with self._talking:
                self._send_tags(self._ids.run_id)
                while self._send_batch(self._ids.run_id):
                    continue
        except Exception as error:
            self._failed(error)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Attach a small file (a report, a plot, a manifest) to the stage's run, if MLflow is there.

        Unlike figures it is sent at once, and not again later: the file may be gone by then.
        """
        if self._ids is None:
            return
        if time.monotonic() < self._retry_at:
            self._warn(str(path), "MLflow is away: %s is not attached to its run", path)
            return
        try:
            with self._talking:
                self._mlflow().log_artifact(self._ids.run_id, str(path), folder)
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Send the rest and close the file; waits at most `_CLOSE_SECONDS` for MLflow."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_SECONDS)
        with self._changing:
            missing = len(self._buffer) + self._cut + self._refused
        if missing:
            log.warning("%d figures did not reach MLflow; they are in %s", missing, self._file.name)
        with contextlib.suppress(OSError):
            self._file.close()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_always, name="mlflow", daemon=True)
            self._thread.start()

    def _send_always(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(_FLUSH_SECONDS)
            self._wake.clear()
            self.flush()
        # A last try, even if MLflow was away a moment ago.
        self._retry_at = 0.0
        self.flush()

    def _send_tags(self, run_id: str) -> None:
        with self._changing:
            tags, self._tags = self._tags, {}
        try:
            for name in list(tags):
                self._mlflow().set_tag(run_id, name, tags[name])
                del tags[name]
        finally:
            with self._changing:
                self._tags = {**tags, **self._tags}

    def _send_batch(self, run_id: str) -> bool:
        """Send one batch; whether there was one."""
        with self._changing:
            batch, cut = self._buffer[:_BATCH], self._cut
        if not batch:
            return False
        try:
            self._mlflow().log_batch(run_id, metrics=_metrics(batch))
        except Exception as error:
            if getattr(error, "error_code", None) not in _REFUSED:
                raise
            # It would be refused for ever, and everything behind it would wait.
            self._warn("refused", "MLflow refuses figures: %s", without_credentials(error))
            self._refused += len(batch)
        with self._changing:
            # Less what has been cut from the front of the buffer in the meantime.
            del self._buffer[: max(0, len(batch) - (self._cut - cut))]
        return True

    def _mlflow(self) -> MlflowClient:
        if self._client is None:
            for name, value in _LIMITS.items():
                os.environ.setdefault(name, value)
            from mlflow import MlflowClient

            assert self._ids is not None
            self._client = MlflowClient(tracking_uri=_with_credentials(self._ids.uri))
        return self._client

    def _failed(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + _BACK_OFF_SECONDS
        what = without_credentials(error)
        self._warn("away", "MLflow cannot be reached (%s): the stage goes on without it", what)

    def _warn(self, what: str, message: str, *values: object) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning(message, *values)


def _with_credentials(uri: str) -> str:
    """The tracking URI that the environment has, if it is the same but for user and password."""
    ours = os.environ.get("MLFLOW_TRACKING_URI", "")
    return ours if without_credentials(ours) == uri else uri


def _metrics(rows: list[Row]) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(name, value, stamp, step) for name, value, stamp, step in rows]
