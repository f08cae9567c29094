"""The project's tasks, by trade: each stands around a part of every method and is yours to change.

A task that only calls its part leaves no trace. The source of one that you edit is part of its steps' keys, so that
what depends on it is computed again. Nothing here imports Prefect, since workers load these modules.
"""

from tasks import average, distil, evaluate, fuse, link, partition, train

__all__ = ["average", "distil", "evaluate", "fuse", "link", "partition", "train"]
