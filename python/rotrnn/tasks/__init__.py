"""Data sets and generators, by the name that a recipe's ``[task]`` section gives. They know of no model."""

from rotrnn.tasks.brackets import Brackets
from rotrnn.tasks.digits import Digits
from rotrnn.tasks.listops import ListOps
from rotrnn.tasks.regular import Regular
from rotrnn.tasks.string_copy import Copy
from rotrnn.tasks.task import Batch, Settings, Shape, Split, Task, describe
from rotrnn.tasks.word_problem import WordProblem

TASKS: dict[str, type[Settings]] = {
    "listops": ListOps,
    "digits": Digits,
    "word_problem": WordProblem,
    "copy": Copy,
    "brackets": Brackets,
    "regular": Regular,
}

__all__ = [
    "TASKS",
    "Batch",
    "Brackets",
    "Copy",
    "Digits",
    "ListOps",
    "Regular",
    "Settings",
    "Shape",
    "Split",
    "Task",
    "WordProblem",
    "describe",
]
