"""The same function over many items, in worker processes that end with this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from trainwright.stages.watch.processes import end_with_ppid

Item = TypeVar("Item")


def each(function: Callable[[Item], None], items: Sequence[Item], workers: int) -> Iterator[int]:
    """Apply `function` to every item; yields how many are done. The first error ends it.

    With one worker or one item everything runs in this process.
    """
    if workers == 1 or len(items) < 2:
        for done, item in enumerate(items, 1):
            function(item)
            yield done
        return
    # Spawned, not forked: the stage has threads (lease, progress), and a fork copies their locks.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(workers, len(items)), mp_context=context, initializer=end_with_ppid
    )
    try:
        futures = [pool.submit(function, item) for item in items]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            yield done
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
