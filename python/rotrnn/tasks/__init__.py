"""Data sets and data generators, by the name used in a recipe's ``[task]`` section. They do not depend on any model."""

from rotrnn.tasks.aan import AAN
from rotrnn.tasks.arrays import Arrays, save_arrays
from rotrnn.tasks.brackets import Brackets
from rotrnn.tasks.catbabi import CatBabi
from rotrnn.tasks.cifar import CIFAR
from rotrnn.tasks.delayed_copy import DelayedCopy
from rotrnn.tasks.digits import Digits
from rotrnn.tasks.flip_flop import FlipFlop
from rotrnn.tasks.folder import Folder
from rotrnn.tasks.imdb import IMDB
from rotrnn.tasks.language import Language
from rotrnn.tasks.listops import ListOps
from rotrnn.tasks.mad import MAD
from rotrnn.tasks.mnist import MNIST, FashionMNIST
from rotrnn.tasks.mqar import MQAR
from rotrnn.tasks.pathfinder import Pathfinder
from rotrnn.tasks.recall import Recall
from rotrnn.tasks.regular import Regular
from rotrnn.tasks.released import Released
from rotrnn.tasks.series import Series
from rotrnn.tasks.speech_commands import SpeechCommands
from rotrnn.tasks.string_copy import Copy
from rotrnn.tasks.table import Table
from rotrnn.tasks.task import Batch, Settings, Shape, Split, Task, describe
from rotrnn.tasks.uea import UEA
from rotrnn.tasks.word_problem import WordProblem

TASKS: dict[str, type[Settings]] = {
    "listops": ListOps,
    "digits": Digits,
    "imdb": IMDB,
    "aan": AAN,
    "cifar": CIFAR,
    "mnist": MNIST,
    "fashion_mnist": FashionMNIST,
    "speech_commands": SpeechCommands,
    "word_problem": WordProblem,
    "copy": Copy,
    "delayed_copy": DelayedCopy,
    "brackets": Brackets,
    "regular": Regular,
    "recall": Recall,
    "mqar": MQAR,
    "mad": MAD,
    "flip_flop": FlipFlop,
    "pathfinder": Pathfinder,
    "arrays": Arrays,
    "table": Table,
    "folder": Folder,
    "series": Series,
    "language": Language,
    "uea": UEA,
    "catbabi": CatBabi,
}

__all__ = [
    "AAN",
    "CIFAR",
    "IMDB",
    "MAD",
    "MNIST",
    "MQAR",
    "TASKS",
    "UEA",
    "Arrays",
    "Batch",
    "Brackets",
    "CatBabi",
    "Copy",
    "DelayedCopy",
    "Digits",
    "FashionMNIST",
    "FlipFlop",
    "Folder",
    "Language",
    "ListOps",
    "Pathfinder",
    "Recall",
    "Regular",
    "Released",
    "Series",
    "Settings",
    "Shape",
    "SpeechCommands",
    "Split",
    "Table",
    "Task",
    "WordProblem",
    "describe",
    "save_arrays",
]
