"""Artifact stores: `file://` and `s3://` behind one interface."""

from trainwright.stages.store.base import (
    ChecksumError,
    ConditionFailedError,
    NotFoundError,
    ObjectInfo,
    Store,
    StoreError,
    Unfinished,
    join_uri,
    open_store,
    split_uri,
)

__all__ = [
    "ChecksumError",
    "ConditionFailedError",
    "NotFoundError",
    "ObjectInfo",
    "Store",
    "StoreError",
    "Unfinished",
    "join_uri",
    "open_store",
    "split_uri",
]
