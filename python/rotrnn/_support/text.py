"""Numbers in messages."""


def plural(n: int, what: str) -> str:
    """Returns a number with its noun: "1 run", "1,234 runs"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
