"""Numbers and names in messages."""

import difflib
import re
from collections.abc import Iterable

SPELLED = re.compile(r"[A-Z]([A-Z\d]|$)")
"""The beginning of a name that is spelt letter by letter, such as LRU and S5."""
WORDS = re.compile(r"(?i)(f[lr]?|h|l|m|n|rh?|x|s[chklmnpqtw]{0,2}[lr]?)[aeiouy]|str\b")
"""The beginning of a name that is spoken as a word, with a letter whose own name begins with a vowel."""


def plain(text: str) -> str:
    """Returns a text, which may come from somebody else's file, with control characters (which could move a terminal's
    cursor) escaped as in a Python string."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def plural(n: int, what: str) -> str:
    """Returns a number with its noun: "1 run", "1,234 runs"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def an(name: str) -> str:
    """Returns a name with its article, by sound: "a Mamba", "an Attention"; "a GRU", "an LRU", "an ndarray"."""
    letter = name[:1].upper()
    if SPELLED.match(name) or (letter in "FHLMNRSX" and not WORDS.match(name)):
        vowel = letter in "AEFHILMNORSX"
    else:
        vowel = letter in "AEIOU" and not re.match("(?i)uni|us|eu|one", name)
    return f"{'an' if vowel else 'a'} {name}"


def alike(name: str, known: Iterable[str]) -> str:
    """Returns a question for the known name that is nearest to a mistyped one, with its capitals or without; empty if
    there is none."""
    known = list(known)
    found = difflib.get_close_matches(name, known, 1, 0.6)
    if not found:
        by_letters = {one.lower(): one for one in known}
        found = [by_letters[one] for one in difflib.get_close_matches(name.lower(), by_letters, 1, 0.6)]
    return f"; did you mean {found[0]}?" if found else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the nearest known name, or else all known names."""
    known = list(known)
    return alike(name, known) or f"; expected one of {', '.join(known)}"
