"""Text for people that has names from files and models in it, which may have any characters."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Returns a text with escapes in the place of what a terminal, a log or a page would obey or
    hide: control characters, newlines, marks of direction, and halves of surrogate pairs.

    Examples:
      >>> print(printable("conv\x1b[2J"))
      conv\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
