# SPDX-License-Identifier: Apache-2.0
"""Finds libkvtier_kernels and loads it at the first use."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib

from .. import _library as client_library
from ._abi import PROTOTYPES, VERSION

LIBRARY_VARIABLE = "KVTIER_KERNELS_LIBRARY"
LIBRARY_NAME = "libkvtier_kernels.so"


def _candidates() -> list[str]:
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        # Who names a library wants that one: another must not take its place in silence.
        return [named]
    beside = [pathlib.Path(__file__).resolve().parent.parent]
    client = os.environ.get(client_library.LIBRARY_VARIABLE)
    if client:
        # A build leaves both libraries in one directory.
        beside.append(pathlib.Path(client).parent)
    paths = [directory / LIBRARY_NAME for directory in beside]
    return [str(path) for path in paths if path.exists()] + [LIBRARY_NAME]


@functools.cache
def load() -> ctypes.CDLL:
    """The library, with all prototypes declared; loaded by the first call.

    Looked for at $KVTIER_KERNELS_LIBRARY (and then nowhere else), beside this package, beside
    $KVTIER_LIBRARY, and where the dynamic linker finds it.

    Raises LibraryNotFoundError, also if it is of another version.
    """
    library = client_library.load_first(
        _candidates(), PROTOTYPES, "libkvtier_kernels", LIBRARY_VARIABLE
    )
    check_version(library)
    return library


def check_version(library: ctypes.CDLL) -> None:
    """Raises LibraryNotFoundError if its parameters are laid out otherwise than here."""
    if not library.kvt_kernels_table(VERSION):
        raise client_library.LibraryNotFoundError(
            f"{library._name} does not have version {VERSION} of its interface"
        )
