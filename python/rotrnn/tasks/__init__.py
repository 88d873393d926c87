"""Data sets and generators, by the name that a recipe's ``[task]`` section gives. They know of no model."""

from rotrnn.tasks.digits import Digits
from rotrnn.tasks.listops import ListOps
from rotrnn.tasks.task import Batch, Settings, Split, Task, describe

TASKS: dict[str, type[ListOps | Digits]] = {"listops": ListOps, "digits": Digits}

__all__ = ["TASKS", "Batch", "Digits", "ListOps", "Settings", "Split", "Task", "describe"]
