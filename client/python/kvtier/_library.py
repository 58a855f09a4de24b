# SPDX-License-Identifier: Apache-2.0
"""Finds libkvtier and loads it at the first use; `abi` is what its headers declare."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from typing import Any

from ._cheader import Header

LIBRARY_VARIABLE = "KVTIER_LIBRARY"
LIBRARY_NAME = "libkvtier.so.0"

_PACKAGE = pathlib.Path(__file__).resolve().parent
# No structure of options is larger, in any version of the library.
_LARGEST_OPTIONS_BYTES = 4096

#: Structures, constants and functions of kvtier.h, by their names in C.
abi = Header(_PACKAGE / "include" / "kvtier.h")


class LibraryNotFoundError(ImportError):
    """A library of kvtier could not be loaded; the message names each place and the reason."""


def sized(structure: Any) -> Any:
    """A zeroed structure whose `size` field is filled in."""
    value = structure()
    value.size = ctypes.sizeof(structure)
    return value


def load_first(paths: list[str], header: Header, name: str, variable: str) -> ctypes.CDLL:
    """The first of `paths` that can be loaded, with the functions of `header` declared.

    Raises LibraryNotFoundError, which tells of library `name` and of the environment's `variable`
    that names it.
    """
    tried = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
            for function_name, (result, arguments) in header.functions.items():
                function = getattr(library, function_name)
                function.restype = result
                function.argtypes = arguments
            return library
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    raise LibraryNotFoundError(
        f"{name} cannot be loaded (set {variable} to its path): " + "; ".join(tried)
    )


def check_sizes(library: Any) -> None:
    """Compares the structures that the library initializes with the package's.

    They may have grown at their end in a newer library. Raises LibraryNotFoundError if one is
    smaller there: the library is older than this package.
    """
    for name in abi.functions:
        structure = abi.structures.get(name.rpartition("_init")[0])
        if not name.endswith("_init") or structure is None:
            continue
        memory = ctypes.create_string_buffer(_LARGEST_OPTIONS_BYTES)
        getattr(library, name)(memory)
        size = ctypes.c_size_t.from_buffer(memory).value
        if size < ctypes.sizeof(structure):
            raise LibraryNotFoundError(
                f"{library._name} is older than this package: {structure.__name__} has {size} "
                f"bytes there and {ctypes.sizeof(structure)} here"
            )


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with all functions declared; loaded by the first call. Any thread.

    Looked for at $KVTIER_LIBRARY (and then nowhere else), beside this package, and where the
    dynamic linker finds libkvtier.so.0. Raises LibraryNotFoundError.
    """
    library = load_first(_candidates(), abi, "libkvtier", LIBRARY_VARIABLE)
    check_sizes(library)
    return library


def version() -> str:
    """Version of the loaded library, "MAJOR.MINOR.PATCH". Raises LibraryNotFoundError."""
    text: bytes = load().kvt_version()
    return text.decode()


def _candidates() -> list[str]:
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        # A library that is named must not be replaced by another in silence.
        return [named]
    names = (LIBRARY_NAME, "libkvtier.so")
    return [str(_PACKAGE / name) for name in names if (_PACKAGE / name).exists()] + [LIBRARY_NAME]
