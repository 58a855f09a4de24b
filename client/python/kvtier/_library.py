# SPDX-License-Identifier: Apache-2.0
"""Finds libkvtier and loads it at the first use."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from typing import Any

from ._abi import PROTOTYPES

LIBRARY_VARIABLE = "KVTIER_LIBRARY"
LIBRARY_NAME = "libkvtier.so.0"


class LibraryNotFoundError(ImportError):
    """A library of kvtier could not be loaded; the message names each place and why it did not do."""


def _candidates() -> list[str]:
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        # Who names a library wants that one: another must not take its place in silence.
        return [named]
    beside = pathlib.Path(__file__).resolve().parent
    names = (LIBRARY_NAME, "libkvtier.so")
    return [str(beside / name) for name in names if (beside / name).exists()] + [LIBRARY_NAME]


def load_first(
    paths: list[str], prototypes: dict[str, tuple[Any, list[Any]]], name: str, variable: str
) -> ctypes.CDLL:
    """The first of `paths` that can be loaded, its functions declared. Raises
    LibraryNotFoundError, which tells of library `name` and of the `variable` that names it."""
    tried = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
            for function_name, (result, arguments) in prototypes.items():
                function = getattr(library, function_name)
                function.restype = result
                function.argtypes = arguments
            return library
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    raise LibraryNotFoundError(
        f"{name} cannot be loaded (set {variable} to its path): " + "; ".join(tried)
    )


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with all prototypes declared; loaded by the first call.

    Looked for at $KVTIER_LIBRARY (and then nowhere else), beside this package, and where the
    dynamic linker finds libkvtier.so.0.

    Raises LibraryNotFoundError.
    """
    return load_first(_candidates(), PROTOTYPES, "libkvtier", LIBRARY_VARIABLE)


def version() -> str:
    """Version of the loaded library, "MAJOR.MINOR.PATCH". Raises LibraryNotFoundError."""
    text: bytes = load().kvt_version()
    return text.decode()
