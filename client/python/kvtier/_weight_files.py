# SPDX-License-Identifier: Apache-2.0
"""Which weights a directory has, told by their bytes: the same weights copied anew, with other times
or to another path, are the same ones.

The digest covers a sample of each tensor of a safetensors file at fixed places, pieces all over other
large files, and small files whole. Reading them takes milliseconds while the files are in the page
cache. A checkpoint that differs in a few numbers only may look like the one before it; a user who
makes such checkpoints asks for whole files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

#: The hub's name of a version of a model.
COMMIT = re.compile("[0-9a-f]{40}")

_TENSORS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_OTHERS = (".json", ".model", ".py")
# Files of at most so many bytes are read whole.
_WHOLE_BYTES = 1 << 20
_READ_BYTES = 8 << 20
# The sample of a tensor, and of a large file that is no safetensors file.
_TENSOR_PIECES, _TENSOR_PIECE_BYTES = 2, 512
_FILE_PIECES, _FILE_PIECE_BYTES = 256, 4096
_MOST_HEADER_BYTES = 100 << 20


class File(NamedTuple):
    """A file is read again if any of these has changed. changed_ns: no user can set it back."""

    path: str
    name: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int


# Digests of files that were read by this process.
_known: dict[tuple[File, bool], bytes] = {}


def weights_digest(path: str | None, whole: bool = False) -> str | None:
    """128 bits, in hexadecimal, that tell the weights of a model's directory apart; None if `path` is
    no directory, or has none. whole: reads all bytes. Raises OSError."""
    if not path or not os.path.isdir(path):
        return None
    files = list_files(path)
    if not any(file.name.endswith(_TENSORS) for file in files):
        return None
    digest = hashlib.sha256()
    for file in files:
        known = _known.get((file, whole))
        if known is None:
            known = _known[file, whole] = _file_digest(file, whole)
        digest.update(f"{len(file.name)} {file.name}".encode() + known)
    return digest.hexdigest()[:32]


def content_digest(path: str) -> str | None:
    """128 bits, in hexadecimal, that tell a file's content or a directory's weights apart; None if there are none
    at `path`, or they cannot be read."""
    try:
        if not os.path.isfile(path):
            return weights_digest(path)
        return _file_digest(_file(path, os.path.basename(path), os.stat(path)), False).hex()[:32]
    except OSError:
        return None


def list_files(path: str) -> tuple[File, ...]:
    """The files of a directory that tell a model apart. Raises OSError."""
    return tuple(sorted(_files(path), key=lambda file: file.name))


def _files(path: str) -> Iterable[File]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(_TENSORS + _OTHERS) and entry.is_file():
                yield _file(entry.path, entry.name, entry.stat())


def _file(path: str, name: str, status: os.stat_result) -> File:
    times = status.st_mtime_ns, status.st_ctime_ns
    return File(path, name, status.st_size, *times, status.st_ino)


def _file_digest(file: File, whole: bool) -> bytes:
    digest = hashlib.sha256(f"{file.size} ".encode())
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if whole or file.size <= _WHOLE_BYTES:
            for offset in range(0, file.size, _READ_BYTES):
                digest.update(os.pread(descriptor, _READ_BYTES, offset))
            return digest.digest()
        header = _safetensors_header(descriptor, file)
        digest.update(header)
        for offset, size in _tensor_pieces(header, file.size) or _pieces(
            0, file.size, _FILE_PIECES, _FILE_PIECE_BYTES
        ):
            digest.update(os.pread(descriptor, size, offset))
        return digest.digest()
    finally:
        os.close(descriptor)


def _safetensors_header(descriptor: int, file: File) -> bytes:
    """With its length before it; empty for files of another kind."""
    if not file.name.endswith(".safetensors"):
        return b""
    length = os.pread(descriptor, 8, 0)
    size = int.from_bytes(length, "little")
    if size > min(_MOST_HEADER_BYTES, file.size):
        return b""
    return length + os.pread(descriptor, size, 8)


def _tensor_pieces(header: bytes, file_bytes: int) -> list[tuple[int, int]]:
    """Where samples of the tensors lie, in the order of the file; none if the header names none."""
    try:
        tensors = json.loads(header[8:]) if header else {}
        places = sorted(
            tuple(map(int, one["data_offsets"]))
            for name, one in tensors.items()
            if name != "__metadata__"
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    pieces = []
    for begin, end in places:
        if not 0 <= begin <= end <= file_bytes - len(header):
            return []
        pieces += _pieces(len(header) + begin, end - begin, _TENSOR_PIECES, _TENSOR_PIECE_BYTES)
    return pieces


def _pieces(first: int, size: int, count: int, piece_bytes: int) -> list[tuple[int, int]]:
    """The middles of so many parts of equal size, or everything if that is not longer than they are."""
    if size <= count * piece_bytes:
        return [(first, size)]
    part = size // count
    return [
        (first + number * part + (part - piece_bytes) // 2, piece_bytes) for number in range(count)
    ]
