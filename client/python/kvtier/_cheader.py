# SPDX-License-Identifier: Apache-2.0
"""Reads kvtier's public C headers, so that their structures, constants and functions are written
down once: in the headers, which travel with the package.

Only the C that those headers use is understood: constants, enums, type names, callbacks, structures
of scalars, pointers, arrays and other structures, and functions. Anything else is a ValueError, so
that no declaration is passed over in silence.
"""

from __future__ import annotations

import ctypes
import enum
import os
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

_SCALARS: dict[str, Any] = {
    "void": None,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    **{
        f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
_LIMITS = {"UINT32_MAX": 2**32 - 1, "UINT64_MAX": 2**64 - 1}

_STRUCT = re.compile(r"typedef struct \w* ?\{ ?(.*?) ?\} (\w+)")
_ENUM = re.compile(r"(typedef )?enum \w* ?\{ ?(.*?),? ?\} ?(\w*)")
_OPAQUE = re.compile(r"typedef struct (\w+) (\w+)")
_CALLBACK = re.compile(r"typedef (.+?) ?\(\*(\w+)\)\((.*)\)")
_ALIAS = re.compile(r"typedef (\w+) (\w+)")
_FUNCTION = re.compile(r"(?:KVT_API|KVT_KERNEL_API) (.+?[ *])(\w+)\((.*)\)")
_NAMED = re.compile(r"(.+?[ *])(\w+)(?:\[(\w+)\])?")


class Header:
    """The declarations of one header and of those it includes. Structures, constants and callback
    types are attributes by their names in C.

    structures: by name. functions: by name, the result's type and those of the arguments. Pointers
    are c_void_p, which takes byref(), arrays, bytes, None and addresses alike; but `const char*` is
    c_char_p, and a returned pointer to a structure is one.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Raises OSError; ValueError for a declaration that it does not understand."""
        self.structures: dict[str, Any] = {}
        self.functions: dict[str, tuple[Any, list[Any]]] = {}
        self._constants: dict[str, int] = {}
        self._enums: list[list[str]] = []
        self._types: dict[str, Any] = dict(_SCALARS)
        for statement in _statements(self._read(path, set())):
            self._declare(statement)

    def __getattr__(self, name: str) -> Any:
        for group in (self.structures, self._constants, self._types):
            if name in group:
                return group[name]
        raise AttributeError(f"the headers do not declare {name}")

    def enumeration(self, member: str) -> dict[str, int]:
        """The names, without what all of them begin with, and numbers of the enum that the constant
        `member` is one of."""
        (names,) = (names for names in self._enums if member in names)
        prefix = os.path.commonprefix(names).rpartition("_")[0] + "_"
        return {name[len(prefix) :]: self._constants[name] for name in names}

    def _read(self, path: pathlib.Path, seen: set[str]) -> str:
        """The text without comments and preprocessor lines, each header where it is first
        included; constants are taken in."""
        seen.add(path.name)
        text = re.sub(r"/\*.*?\*/", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"#ifdef __cplusplus\n.*?#endif", "", text, flags=re.DOTALL)
        lines = []
        for line in text.splitlines():
            include = re.fullmatch(r'#include "(?:kvtier/)?(\w+\.h)"\s*', line)
            define = re.fullmatch(r"#define (\w+) (.+)", line)
            if include and include[1] not in seen:
                lines.append(self._read(path.parent / include[1], seen))
            elif define:
                self._define(define[1], define[2])
            elif not line.startswith("#"):
                lines.append(line)
        return "\n".join(lines)

    def _define(self, name: str, text: str) -> None:
        """Takes in a constant; texts and attributes are none."""
        number = _number(text, self._constants)
        if number is not None:
            self._constants[name] = number

    def _declare(self, statement: str) -> None:
        if match := _STRUCT.fullmatch(statement):
            fields = [self._field(field) for field in match[1].split(";") if field.strip()]
            structure = type(match[2], (ctypes.Structure,), {"_fields_": fields})
            self.structures[match[2]] = self._types[match[2]] = structure
        elif match := _ENUM.fullmatch(statement):
            self._declare_enum(match[2])
            if match[1]:
                self._types[match[3]] = ctypes.c_int
        elif match := _OPAQUE.fullmatch(statement):
            self._types[match[2]] = None
        elif match := _CALLBACK.fullmatch(statement):
            self._types[match[2]] = ctypes.CFUNCTYPE(
                self._type(match[1]), *self._arguments(match[3])
            )
        elif match := _ALIAS.fullmatch(statement):
            self._types[match[2]] = self._type(match[1])
        elif match := _FUNCTION.fullmatch(statement):
            self.functions[match[2]] = (self._result(match[1]), self._arguments(match[3]))
        else:
            raise ValueError(f"not understood in a header of kvtier: {statement}")

    def _declare_enum(self, body: str) -> None:
        names = []
        for member in body.split(","):
            name, _, value = member.partition("=")
            number = _number(value, self._constants)
            if number is None:
                raise ValueError(f"an enum's constant without a number: {member}")
            self._constants[name.strip()] = number
            names.append(name.strip())
        self._enums.append(names)

    def _field(self, text: str) -> tuple[str, Any]:
        text = text.strip()
        if match := re.fullmatch(r".+\(\*(\w+)\)\(.*\)", text):
            return match[1], ctypes.c_void_p
        match = _NAMED.fullmatch(text)
        if match is None:
            raise ValueError(f"not understood as a field: {text}")
        kind = self._type(match[1])
        if match[3] is not None:
            count = _number(match[3], self._constants)
            if count is None:
                raise ValueError(f"an array of unknown size: {text}")
            kind = kind * count
        return match[2], kind

    def _arguments(self, text: str) -> list[Any]:
        if text == "void":
            return []
        return [self._field(argument)[1] for argument in text.split(",")]

    def _result(self, text: str) -> Any:
        base = text.replace("const ", "").replace("*", "").strip()
        if base in self.structures and text.count("*") == 1:
            return ctypes.POINTER(self.structures[base])
        return self._type(text)

    def _type(self, text: str) -> Any:
        if "*" in text:
            return ctypes.c_char_p if text.strip() == "const char*" else ctypes.c_void_p
        name = text.replace("const ", "").strip()
        if name not in self._types:
            raise ValueError(f"a type of no header of kvtier: {name}")
        return self._types[name]


class HeaderEnumType(enum.EnumMeta):
    """Tells type checkers that the members come from elsewhere."""

    if TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any: ...


class HeaderEnum(enum.IntEnum, metaclass=HeaderEnumType):
    """The base of the enums whose members are those of an enum in a header."""


class HeaderFlag(enum.IntFlag, metaclass=HeaderEnumType):
    """The same for bits that are or-ed together."""


_Enum = TypeVar("_Enum", bound=type)


def enum_of(header: Header, member: str) -> Callable[[_Enum], _Enum]:
    """Gives the class below it, a HeaderEnum or HeaderFlag without members, the names and numbers
    of the enum of `header` that the constant `member` is one of."""

    def with_members(base: _Enum) -> _Enum:
        # A call of an enum without members makes one that has them.
        names = header.enumeration(member)
        made: Any = base(base.__name__, names, module=base.__module__)
        made.__doc__ = base.__doc__
        result: _Enum = made
        return result

    return with_members


def unnamed_member(cls: type[enum.IntEnum], value: object, prefix: str) -> Any:
    """For `_missing_`: a member for a number that only a newer library knows, since numbers are
    added and never reused; None if it is no number."""
    if not isinstance(value, int):
        return None
    member = int.__new__(cls, value)
    member._name_ = f"{prefix}_{value}"
    member._value_ = value
    return member


def _number(text: str, constants: dict[str, int]) -> int | None:
    """The value of a literal, with or without a cast, or of a constant; None if it is neither."""
    text = re.sub(r"\(\w+_t\)", "", text).strip(" ()")
    if text in constants:
        return constants[text]
    if text in _LIMITS:
        return _LIMITS[text]
    return int(text, 0) if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)", text) else None


def _statements(text: str) -> list[str]:
    """The declarations, each on one line of single blanks; semicolons within braces stay."""
    statements, depth, begin = [], 0, 0
    for mark in re.finditer(r"[{};]", text):
        depth += {"{": 1, "}": -1, ";": 0}[mark[0]]
        if mark[0] == ";" and depth == 0:
            statements.append(" ".join(text[begin : mark.start()].split()))
            begin = mark.end()
    return statements
