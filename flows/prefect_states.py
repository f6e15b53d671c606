"""States of flow runs on a Prefect server, set by those who outlive the flow; without importing Prefect."""

from __future__ import annotations

import logging
import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from trainwright.stages.settings import without_credentials

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_CLOCKS = timedelta(seconds=5)
"""So much may the server's clock be ahead of ours."""


def client_of(api: str, timeout: float = 20.0) -> httpx.Client:
    """A client of the API, with the key, or user and password, that Prefect's own would take."""
    import httpx

    headers = {}
    if key := os.environ.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    user, colon, password = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    auth = (user, password) if colon else None
    return httpx.Client(base_url=api, timeout=timeout, headers=headers, auth=auth)


def mark_crashed(api: str, flow_run: str, reason: str, *, since: datetime | None = None) -> None:
    """Set a flow run that still counts as going on to Crashed (Cancelled, if that was asked for).

    `since`: when its dead process took the run; one that began to run only after that is a Retry.
    """
    import httpx

    try:
        with client_of(api) as client:
            answer = client.get(f"/flow_runs/{flow_run}")
            if answer.status_code == 404:
                return
            state = answer.raise_for_status().json().get("state") or {}
            if state.get("type") not in ("RUNNING", "PENDING", "CANCELLING"):
                return
            began = datetime.fromisoformat(state["timestamp"])
            if since is not None and state["type"] != "CANCELLING" and began > since + _CLOCKS:
                return
            wanted = "CANCELLED" if state["type"] == "CANCELLING" else "CRASHED"
            body = {"state": {"type": wanted, "message": reason}, "force": True}
            client.post(f"/flow_runs/{flow_run}/set_state", json=body).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        log.warning("the Prefect flow run could not be marked: %s", without_credentials(error))
