"""Finds libkvtier and loads it at the first use."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib

from ._abi import PROTOTYPES

LIBRARY_VARIABLE = "KVTIER_LIBRARY"
LIBRARY_NAME = "libkvtier.so.0"


class LibraryNotFoundError(ImportError):
    """libkvtier could not be loaded; the message names each place and why it did not do."""


def _candidates() -> list[str]:
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        # Who names a library wants that one: another must not take its place in silence.
        return [named]
    beside = pathlib.Path(__file__).resolve().parent
    names = (LIBRARY_NAME, "libkvtier.so")
    return [str(beside / name) for name in names if (beside / name).exists()] + [LIBRARY_NAME]


def _declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with all prototypes declared; loaded by the first call.

    Looked for at $KVTIER_LIBRARY (and then nowhere else), beside this package, and where the
    dynamic linker finds libkvtier.so.0.

    Raises LibraryNotFoundError.
    """
    tried = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            _declare(library)
            return library
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    raise LibraryNotFoundError(
        f"libkvtier cannot be loaded (set {LIBRARY_VARIABLE} to its path): " + "; ".join(tried)
    )


def version() -> str:
    """Version of the loaded library, "MAJOR.MINOR.PATCH". Raises LibraryNotFoundError."""
    text: bytes = load().kvt_version()
    return text.decode()
