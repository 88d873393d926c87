"""Runs a module as `python -m` does, where the stand-in for a GPU is one: what runs on a GPU can be tried without.

PYTHONPATH=python:tests:. python tests/cuda/on_stand_in.py -m MODULE ARGUMENTS
"""

from __future__ import annotations

import runpy
import sys

import fake_cupy

if __name__ == "__main__":
    option, module, *arguments = sys.argv[1:]
    assert option == "-m", f"{option}: expected -m"
    sys.argv = [module, *arguments]
    with fake_cupy.gpu():
        runpy.run_module(module, run_name="__main__", alter_sys=True)
