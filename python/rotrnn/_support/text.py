"""Numbers and names in messages."""

import difflib
from collections.abc import Iterable


def plain(text: str) -> str:
    """Returns a text, which may come from a file of somebody else, with control characters, such as those that move a
    terminal's cursor, as Python would write them in a string."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def plural(n: int, what: str) -> str:
    """Returns a number with its noun: "1 run", "1,234 runs"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def alike(name: str, known: Iterable[str]) -> str:
    """Returns a question for the known name that is nearest to a mistyped one; empty if there is none."""
    found = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the nearest one, or else all that are known."""
    known = list(known)
    return alike(name, known) or f"; expected one of {', '.join(known)}"
