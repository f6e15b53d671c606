"""Automations on a Prefect server: a flow run whose process vanished does not stay Running.

A flow sends a heartbeat event every `HEARTBEAT_SECONDS`. A run that had one, and then neither another
nor an end for `SILENT_SECONDS`, is set to Crashed.
"""

from __future__ import annotations

from typing import Any

HEARTBEAT_SECONDS = 30
"""Prefect takes nothing shorter."""
SILENT_SECONDS = 90
ZOMBIES = "trainwright: runs without a heartbeat are crashed"

_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def zombie_automation() -> dict[str, Any]:
    """The automation as Prefect's REST API takes it."""
    beat = "prefect.flow-run.heartbeat"
    return {
        "name": ZOMBIES,
        "description": (
            f"No heartbeat for {SILENT_SECONDS} s: the process that ran the flow is gone. Its stages "
            "end by themselves."
        ),
        "enabled": True,
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": ["prefect.flow-run.*"]},
            "for_each": ["prefect.resource.id"],
            "after": [beat],
            "expect": [beat, *(f"prefect.flow-run.{end}" for end in _ENDS)],
            "threshold": 1,
            "within": SILENT_SECONDS,
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "state": "CRASHED",
                "message": f"no heartbeat for {SILENT_SECONDS} s: the flow's process is gone",
            }
        ],
    }


def ensure_automations(api_url: str) -> None:
    """Create the automations on the server, or bring those of the same name up to date."""
    import httpx

    wanted = zombie_automation()
    with httpx.Client(base_url=api_url, timeout=30) as client:
        condition = {"automations": {"name": {"any_": [wanted["name"]]}}}
        found = client.post("/automations/filter", json=condition).raise_for_status().json()
        if found:
            client.put(f"/automations/{found[0]['id']}", json=wanted).raise_for_status()
        else:
            client.post("/automations/", json=wanted).raise_for_status()
