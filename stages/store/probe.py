"""Whether a store keeps the promises that leases and manifests rest on: asked of the store itself.

Some S3 servers take a conditional write and ignore its condition. Two writers would then both win,
and nothing would say so.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from trainwright.stages.store.base import ConditionFailedError, Store


def probe(store: Store) -> list[str]:
    """Promises that the store breaks, a sentence each; empty for a good one.

    Writes and deletes one small object below `probe/`. Raises what the store's calls raise: where it
    cannot be reached, or refuses the credentials, the error says so.
    """
    key = f"probe/{uuid.uuid4().hex}"
    broken = []
    try:
        store.put(key, b"one", if_absent=True)
        if not _refused(lambda: store.put(key, b"two", if_absent=True)):
            broken.append("it overwrites an object that must not exist (If-None-Match: *)")
        old = store.put(key, b"three")
        store.put(key, b"four", if_match=old)
        if not _refused(lambda: store.put(key, b"five", if_match=old)):
            broken.append("it overwrites an object that has changed (If-Match)")
        if not _refused(lambda: store.delete(key, if_match=old)):
            broken.append("it deletes an object that has changed (If-Match)")
    finally:
        store.delete(key)
    return [f"store {store.root}: {what}; use another store for artifacts" for what in broken]


def _refused(change: Callable[[], object]) -> bool:
    try:
        change()
    except ConditionFailedError:
        return True
    return False
