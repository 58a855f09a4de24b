# SPDX-License-Identifier: Apache-2.0
"""The shared memory that a memoryview shows: the descriptor and offset by which the daemon maps the
same bytes.

vLLM and LMCache give their modules a view or an address of host memory and no descriptor. The
address is looked up in /proc/self/maps, which names the file that is mapped there by device and
inode; any descriptor of that file that the process has open serves, also after the file's name was
removed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np


class NotSharedError(Exception):
    """The view does not lie in a shared, writable mapping of a file that can be passed on."""


@dataclass(frozen=True)
class HostView:
    """Rows of equal size in a file that is mapped shared.

    fd: owned by this object until `close`. file_bytes: of the whole file. offset: of the first row
    in the file; row i lies at offset + i * row_stride and has row_bytes bytes. Any thread.
    """

    fd: int
    file_bytes: int
    offset: int
    row_stride: int
    row_bytes: int
    rows: int

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True)
class _Mapping:
    """A line of /proc/self/maps. offset: of `start` in the file. path: may end in " (deleted)"."""

    start: int
    end: int
    permissions: str
    offset: int
    device: int
    inode: int
    path: str


def find_host_view(view: memoryview) -> HostView:
    """Where the rows of a two-dimensional view lie, one row for each index of its first dimension.

    Raises NotSharedError, which names the obstacle; ValueError if the view has other dimensions or
    its rows are not contiguous.
    """
    rows = np.asarray(view)
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.strides[1] != rows.itemsize:
        raise ValueError(f"a view of {rows.shape} with strides {rows.strides} has no rows")
    row_bytes, row_stride = rows.shape[1] * rows.itemsize, rows.strides[0]
    first = rows.__array_interface__["data"][0]
    last = first + (rows.shape[0] - 1) * row_stride + row_bytes
    mapping = _mapping_of(first, last)
    fd = _open_file_of(mapping)
    offset = mapping.offset + first - mapping.start
    return HostView(fd, os.fstat(fd).st_size, offset, row_stride, row_bytes, rows.shape[0])


def _mapping_of(first: int, last: int) -> _Mapping:
    """The mapping that has all bytes from address `first` up to `last`."""
    for mapping in _mappings():
        if not mapping.start <= first < mapping.end:
            continue
        if mapping.permissions[3] != "s" or "w" not in mapping.permissions or mapping.inode == 0:
            what = f"{mapping.permissions} {mapping.path or 'anonymous'}"
            raise NotSharedError(f"the view lies in memory that cannot be shared ({what})")
        if last > mapping.end:
            # madvise and mprotect of a part split a mapping; what follows must be the same file.
            mapping = _joined(mapping, last)
        return mapping
    raise NotSharedError(f"no mapping at {first:#x}")


def _joined(mapping: _Mapping, last: int) -> _Mapping:
    """`mapping` with those that continue it in memory and in the file, up to `last`."""
    for after in _mappings():
        file_end = mapping.offset + mapping.end - mapping.start
        if after.start == mapping.end and (after.device, after.inode, after.offset) == (
            mapping.device,
            mapping.inode,
            file_end,
        ):
            mapping = _Mapping(**{**mapping.__dict__, "end": after.end})
    if last > mapping.end:
        raise NotSharedError("the view spans several mappings")
    return mapping


def _mappings() -> list[_Mapping]:
    """All mappings of this process, by ascending address."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            addresses, permissions, offset, device, inode, *path = line.rstrip("\n").split(None, 5)
            start, end = (int(address, 16) for address in addresses.split("-"))
            major, minor = (int(number, 16) for number in device.split(":"))
            number = os.makedev(major, minor)
            name = path[0] if path else ""
            found.append(
                _Mapping(start, end, permissions, int(offset, 16), number, int(inode), name)
            )
    return found


def _open_file_of(mapping: _Mapping) -> int:
    """A descriptor of the mapped file, for reading and writing, which the caller closes.

    From a descriptor that is open here, or else by the file's name, or else by the entry of
    /proc/self/map_files, which only a privileged process may open.
    """
    # A descriptor is opened anew, not duplicated: it may be for reading only. Its number may be
    # another file's by then.
    here = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    entry = f"/proc/self/map_files/{mapping.start:x}-{mapping.end:x}"
    for path in (*here, mapping.path, entry):
        try:
            if not _is_file_of(mapping, os.stat(path)):
                continue
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # closed meanwhile, or no right to write
        if _is_file_of(mapping, os.fstat(fd)):
            return fd
        os.close(fd)
    raise NotSharedError(f"no descriptor of the mapped file can be had ({mapping.path})")


def _is_file_of(mapping: _Mapping, status: os.stat_result) -> bool:
    return (status.st_dev, status.st_ino) == (mapping.device, mapping.inode)
