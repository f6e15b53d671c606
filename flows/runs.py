"""Run records in the store: what was asked, what happened to each step. The truth of what is done.

runs/<run>/run.json              RunRecord
runs/<run>/steps/<step>.json     StageRecord
runs/flow-runs/<prefect id>      name of the run, so that Prefect's Retry goes on with it
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, ValidationError

from trainwright.flows.chain import CHAIN, StepName, choose
from trainwright.stages.contract import DataError, StageRecord, StageState, Strict, utcnow
from trainwright.stages.lease import boot_id, process_started
from trainwright.stages.store import NotFoundError, Store

log = logging.getLogger(__name__)


class DamagedRecordError(DataError):
    """A record that cannot be read, or that is not of the run or step whose place it lies in."""


class RunState(StrEnum):
    """State of a pipeline run."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CRASHED = "crashed"


class Owner(Strict):
    """The process that runs a flow: enough to tell whether it is still alive."""

    host: str
    boot: str
    pid: int
    started: float
    since: AwareDatetime | None = None
    """When it took the run."""

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(
            host=os.uname().nodename,
            boot=boot_id(),
            pid=os.getpid(),
            started=process_started(os.getpid()) or 0.0,
            since=utcnow(),
        )

    @property
    def here(self) -> bool:
        """Whether it ran in this boot of this machine, so that its life can be judged from here."""
        return self.boot == boot_id()

    @property
    def alive(self) -> bool:
        """Whether it lives; of another machine's process nothing can be said, so True."""
        if not self.here:
            return not self._rebooted
        started = process_started(self.pid)
        return started is not None and abs(started - self.started) < 1.0

    @property
    def _rebooted(self) -> bool:
        """Whether the machine of that name has been started anew since: all its processes are gone."""
        then, now = self.boot.partition("/")[0], boot_id().partition("/")[0]
        return self.host == os.uname().nodename and then != now


class RunRecord(Strict):
    """A pipeline run."""

    id: str
    kind: str = "pipeline"
    recipe_name: str
    recipe: dict[str, Any]
    options: dict[str, Any] = {}
    state: RunState
    owner: Owner
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    error: str | None = None
    prefect_flow_run_id: str | None = None
    prefect_url: str | None = None
    mlflow_run_id: str | None = None
    mlflow_uri: str | None = None
    report: str | None = None

    @property
    def dead(self) -> bool:
        """Whether it says it runs, but its process is gone."""
        return self.state is RunState.RUNNING and not self.owner.alive


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def new_run_id(recipe_name: str) -> str:
    """A name that sorts by time and can be typed: `demo-20261201-101502-k3f9`."""
    alphabet = "abcdefghjkmnpqrstuvwxyz23456789"
    tail = "".join(secrets.choice(alphabet) for _ in range(4))
    return f"{recipe_name}-{utcnow():%Y%m%d-%H%M%S}-{tail}"


class Runs:
    """The run records of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def save(self, run: RunRecord) -> None:
        """Write a run's record."""
        self.store.put(f"runs/{run.id}/run.json", run.model_dump_json(indent=1).encode())

    def save_step(self, record: StageRecord) -> None:
        """Write a step's record."""
        key = f"runs/{record.run_id}/steps/{record.step}.json"
        self.store.put(key, record.model_dump_json(indent=1).encode())

    def load(self, run_id: str) -> RunRecord:
        """A run by its name, by a unique beginning or ending of it, or `latest`."""
        return self.read(self.resolve(run_id))

    def read(self, run_id: str) -> RunRecord:
        """The record of a run by its full name; `DamagedRecordError` if it cannot be trusted."""
        key = f"runs/{run_id}/run.json"
        data, _ = self.store.get(key)
        try:
            record = RunRecord.model_validate_json(data)
        except ValidationError as error:
            raise self._damaged(run_id, key, _reason(error)) from None
        if record.id != run_id:
            raise self._damaged(run_id, key, f"it names the run {record.id!r}")
        return record

    def _damaged(self, run_id: str, key: str, reason: str) -> DamagedRecordError:
        return DamagedRecordError(
            f"run {run_id}: its record {key} is damaged ({reason}); run its recipe again, and "
            f"delete runs/{run_id} of the store {self.store.root} if it is not needed"
        )

    def resolve(self, name: str) -> str:
        """The full name of a run; `UnknownNameError` lists the newest ones."""
        names = self.names()
        if name == "latest" and names:
            return names[0]
        if name in names:
            return name
        found = [n for n in names if n.startswith(name) or n.endswith(name)]
        if len(found) == 1 and name:
            return found[0]
        return choose("run", name, (found or names)[:10])

    def names(self) -> list[str]:
        """All runs, newest first."""
        suffix = "/run.json"
        names = [
            info.key[len("runs/") : -len(suffix)]
            for info in self.store.list("runs/")
            if info.key.endswith(suffix)
        ]
        return sorted(names, key=lambda name: name.split("-")[-3:], reverse=True)

    def all(self) -> Iterator[RunRecord]:
        """All readable records, newest first."""
        for name in self.names():
            try:
                yield self.read(name)
            except (NotFoundError, DamagedRecordError):
                continue

    def step(self, run_id: str, step: StepName) -> StageRecord | None:
        """A step's record, if it was reached; `DamagedRecordError` if it cannot be trusted."""
        key = f"runs/{run_id}/steps/{step}.json"
        try:
            data, _ = self.store.get(key)
        except NotFoundError:
            return None
        try:
            record = StageRecord.model_validate_json(data)
        except ValidationError as error:
            raise self._damaged(run_id, key, _reason(error)) from None
        if (record.run_id, record.step) != (run_id, step):
            raise self._damaged(run_id, key, f"it names {record.step!r} of {record.run_id!r}")
        return record

    def steps(self, run_id: str) -> dict[StepName, StageRecord]:
        """Records of all steps reached, in the chain's order; a damaged one is told and left out."""
        records = {}
        for step in CHAIN:
            try:
                record = self.step(run_id, step.name)
            except DamagedRecordError as error:
                log.warning("%s", error)
                continue
            if record is not None:
                records[step.name] = record
        return records

    def bind_flow_run(self, flow_run_id: str, run_id: str) -> None:
        """Remember which run a Prefect flow run is."""
        self.store.put(f"runs/flow-runs/{flow_run_id}", run_id.encode())

    def of_flow_run(self, flow_run_id: str) -> RunRecord | None:
        """The run of a Prefect flow run (Prefect's Retry keeps that id)."""
        try:
            data, _ = self.store.get(f"runs/flow-runs/{flow_run_id}")
            return self.read(data.decode())
        except NotFoundError:
            return None

    def bury(self, run: RunRecord, reason: str) -> RunRecord:
        """Mark a run whose process is gone, and its running steps, as crashed."""
        now = utcnow()
        for record in self.steps(run.id).values():
            if record.state is StageState.RUNNING:
                self.save_step(
                    record.model_copy(
                        update={"state": StageState.CRASHED, "error": reason, "ended_at": now}
                    )
                )
        buried = run.model_copy(
            update={"state": RunState.CRASHED, "error": reason, "ended_at": now}
        )
        self.save(buried)
        return buried
