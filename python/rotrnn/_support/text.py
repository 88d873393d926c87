"""Numbers in messages for people."""


def plural(n: int, what: str) -> str:
    """ "1 run", "1,234 runs"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
