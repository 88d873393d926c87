"""Formulas of docstrings as TeX: ``h_t = a_t * h_{t-1} + x_t`` is read as it is by `help`, and set on the site."""

from __future__ import annotations

import re

NAMES = (
    "alpha beta gamma delta epsilon theta lambda nu xi pi rho sigma phi omega Delta Lambda Phi "
    "sum prod exp log tanh cos sin max min"
)
TEX = {name: f"\\{name}" for name in NAMES.split()} | {"lam": r"\lambda", "eps": r"\epsilon"}
SIGNS = {"...": r"\dots", "..": r"\dots", "<=": r"\le", ">=": r"\ge", "<-": r"\leftarrow", "-+": r"\mp", "*": r"\odot"}
SIGNS |= {" . ": r"\cdot", " ~ ": r"\sim", "^T": r"^\top", "^{-T}": r"^{-\top}"}
PAIRS = {"re", "im", "ih", "hh", "in", "dt"}
"""Of two letters, those that are a name and not two indices."""
FORMULA = re.compile(
    r"""[A-Za-z)\]]_(\{|[A-Za-z0-9]\b)|\^|\b(sum|prod)_|'\(|\bRe\("""
    r"""|^(?=.* = ).*\b(lambda|lam|[Dd]elta|Lambda|gamma|alpha|xi)\b"""
)
CODE = re.compile(
    r"""["`:\\]|(?<!\w)'|'(?!\()|\.\w|\w\.(?! )|\w=\S|__|\*\*|->|\w\[|/\w{3}|_\(|[a-z]{2}_[a-z]{2,}\("""
    r"""|\b(of|sum|and|or|from|per|if|likewise)\b"""
    r"""|^\(?[\w\[\]]+(, \w+){2,}\)?$"""
)
WORD = re.compile(r"(?<!\\)\b([A-Za-z]+?)([0-9T]?)(?![A-Za-z0-9])(~?)(?:_(\w+))?")
ROOT = re.compile(r"\bsqrt\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def is_formula(text: str) -> bool:
    """Whether a literal has indices, powers or sums, and is no code."""
    return FORMULA.search(text) is not None and CODE.search(text) is None


def tex(text: str) -> str:
    """Returns a formula as TeX."""
    while (mended := ROOT.sub(r"\\sqrt{\1}", text)) != text:
        text = mended
    text = re.sub(r"\^\(([^()]+)\)|\^(-?\w{2,}|-\w)", lambda found: f"^{{{found[1] or found[2]}}}", text)
    text = re.sub(r"<([^<>=]+, [^<>=]+)>", r"\\langle \1 \\rangle", re.sub(r"\b1e-(\d)", r"10^{-\1}", text))
    text = WORD.sub(_word, re.sub(r",  +", r", \\quad ", text)).replace("T }", "T}")
    text = re.sub(r"\^T\b|\^\{-T\}|\.{2,3}|<=|>=|<-|-\+| [.~] |\*", lambda found: f" {SIGNS[found[0]]} ", text)
    return re.sub(r" +(?=[ )\]}_^,'])|(?<=[([{|]) +", "", text.strip())


def _word(found: re.Match[str]) -> str:
    name, digit, tilde, index = found.groups()
    gradient = name[0] == "d" and (len(name) == 2 or name[1:] in TEX)  # dx, dalpha
    name = name[1:] if gradient else name
    base = TEX.get(name, name if len(name) == 1 else rf"\mathrm{{{name}}}")
    base = (r"\mathrm{d}" if gradient else "") + (rf"\tilde {base}" if tilde else base)
    index = (index or "") + digit
    if name == "log" and "_" in index and len(index) == 3:  # log_f_t
        return f"{base} {index} "
    if len(index) > 1:
        plain = len(index) == 2 and index not in PAIRS
        index = TEX.get(index, f"{{{index}}}" if plain else rf"{{\mathrm{{{index.replace('_', ',')}}}}}")
    return f"{base}_{index} " if index else f"{base} "
