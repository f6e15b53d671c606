"""MLflow as stages use it: batched, and never the reason that a stage fails.

Figures also go to `metrics.jsonl` beside the progress file, so nothing is lost when MLflow is away.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.stages.contract import TrackingIds

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

_FLUSH_SECONDS = 5.0
_BATCH = 900
"""MLflow takes at most 1000 metrics a call."""
_MAX_BUFFER = 200_000


class Tracker:
    """Metrics of one stage, buffered and sent in batches.

    `ids=None` keeps the local file alone.
    """

    def __init__(self, ids: TrackingIds | None, path: Path) -> None:
        self._ids = ids
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)
        self._buffer: list[tuple[str, float, int, int]] = []
        self._sent = time.monotonic()
        self._client: MlflowClient | None = None
        self._warned = False
        self._dropped = 0

    def log(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log figures at a step. Non-finite values stay in the file; MLflow would refuse the batch."""
        now = time.time()
        clean = {name: float(value) for name, value in metrics.items()}
        self._file.write(json.dumps({"time": round(now, 3), "step": step, **clean}) + "\n")
        if self._ids is None:
            return
        stamp = int(now * 1000)
        self._buffer.extend(
            (name, value, stamp, step) for name, value in clean.items() if math.isfinite(value)
        )
        if len(self._buffer) > _MAX_BUFFER:
            self._dropped += len(self._buffer) - _MAX_BUFFER
            del self._buffer[:-_MAX_BUFFER]
        if time.monotonic() - self._sent > _FLUSH_SECONDS or len(self._buffer) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered; what cannot be sent stays for the next time."""
        if self._ids is None:
            return
        self._sent = time.monotonic()
        try:
            client = self._mlflow()
            while self._buffer:
                client.log_batch(self._ids.run_id, metrics=_metrics(self._buffer[:_BATCH]))
                del self._buffer[:_BATCH]
        except Exception as error:
            self._warn(error)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Attach a small file (a report, a plot, a manifest) to the stage's run."""
        if self._ids is None:
            return
        try:
            self._mlflow().log_artifact(self._ids.run_id, str(path), folder)
        except Exception as error:
            self._warn(error)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags on the stage's run."""
        if self._ids is None:
            return
        try:
            for name, value in tags.items():
                self._mlflow().set_tag(self._ids.run_id, name, value)
        except Exception as error:
            self._warn(error)

    def close(self) -> None:
        """Send the rest and close the file."""
        self.flush()
        if self._buffer or self._dropped:
            log.warning(
                "%d figures did not reach MLflow; they are in %s",
                len(self._buffer) + self._dropped,
                self._file.name,
            )
        self._file.close()

    def _mlflow(self) -> MlflowClient:
        if self._client is None:
            from mlflow import MlflowClient

            assert self._ids is not None
            self._client = MlflowClient(tracking_uri=self._ids.uri)
        return self._client

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            log.warning("MLflow cannot be reached (%s): the stage goes on without it", error)
            self._warned = True


def _metrics(rows: list[tuple[str, float, int, int]]) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(name, value, stamp, step) for name, value, stamp, step in rows]
