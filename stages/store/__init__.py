"""Artifact stores: `file://` and `s3://` behind one interface."""

from trainwright.stages.store.base import (
    ConditionFailedError,
    NotFoundError,
    ObjectInfo,
    Store,
    StoreError,
    join_uri,
    open_store,
    split_uri,
)

__all__ = [
    "ConditionFailedError",
    "NotFoundError",
    "ObjectInfo",
    "Store",
    "StoreError",
    "join_uri",
    "open_store",
    "split_uri",
]
