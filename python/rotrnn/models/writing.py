"""Text that a language model writes, and its tokens: the tokenizer.json of a published model's folder."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rotrnn._support.extras import needed
from rotrnn._support.files import open_file, read_most

FILE = "tokenizer.json"
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Tokens:
    """Token ids as text: "464 3290" for the tokens 464 and 3290."""

    def encode(self, text: str) -> list[int]:
        try:
            return [int(one) for one in text.replace(",", " ").split()]
        except ValueError:
            raise ValueError(f"prompt is {text!r:.80}, expected token ids, since there is no {FILE}") from None

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yields the text of each token."""
        for token in tokens:
            yield f" {token}"


class Bytes(Tokens):
    """The bytes of a text in UTF-8, as in the task `language`."""

    COUNT = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yields the text as it grows. A character of several bytes comes with the last of them."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(bytes([token]))
        yield decoder.decode(b"", final=True)


class Tokenizer(Tokens):
    """A tokenizer.json, read by the package tokenizers."""

    def __init__(self, path: Path) -> None:
        with needed(f"{path}: to read it needs tokenizers", "'rotrnn[hub]'"):
            from tokenizers import Tokenizer as Published
        with open_file(path) as file:
            text = read_most(file, MOST)
        try:
            self.published: Any = Published.from_str(text.decode())
        except Exception as error:  # the package raises Exception itself
            raise ValueError(f"{path}: is not a tokenizer, or is damaged ({error})") from None

    def encode(self, text: str) -> list[int]:
        return self.published.encode(text).ids

    def pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yields the text as it grows. A character whose bytes are spread over tokens comes with the last of them."""
        read: list[int] = []
        shown = ""
        for token in tokens:
            read.append(token)
            text = self.published.decode(read)
            if text.endswith(INCOMPLETE):
                continue
            yield text[len(shown) :]
            shown = text


MOST = 2**28
"""Largest tokenizer.json that is read, in bytes."""


def tokens_of(folder: Path) -> Tokens:
    """Returns the reader and writer of a model's tokens, for a folder, or for a file, which has no tokenizer beside
    it."""
    path = folder / FILE
    return Tokenizer(path) if path.is_file() else Tokens()
