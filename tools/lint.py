#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the whole tree for faults that no compiler sees.

    tools/lint.py [--all]

* words that the project does not use, in code, comments and documents; WORDS says what to write;
* sentences of comments, messages and documents without a subject; lint_sentences.py has the rule;
* sources without an SPDX line among their first three lines;
* sources of more than 600 lines, and comments of C and C++ wider than 100 columns;
* tests of the cache that neither begin with a comment that says their subject nor include its header first;
* kernels that nvcc would name by the directory of the source, so that no two builds were the same bytes.

tools/lint_allow.txt names files and folders ("tiers/") that may be so for the time being, one a line.
`--all` goes by nothing but the files, as if that list were empty. Exit: 0 clean, 1 something was found.
"""

import pathlib
import re
import subprocess
import sys

import lint_sentences

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOW_LIST = ROOT / "tools/lint_allow.txt"
MAX_LINES = 600
MAX_COLUMNS = 100
COMMENT_LINE = re.compile(r" *(//|/?\*)")
C_SUFFIXES = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp"}
SOURCE_SUFFIXES = C_SUFFIXES | {".cmake", ".py", ".sh", ".toml", ".yml"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".conf", ".html", ".in", ".json", ".md", ".service", ".txt", ".yaml"}
# Kernels that packages bring; kernels/CMakeLists.txt says why not.
KERNELS = re.compile(r"^kernels/(?!bench/|reference/).*\.cuh?$")
INTERNAL_TO_FILE = re.compile(r"namespace \{|(static )?__(constant|device)__ (static )?const |static __global__")
# Bytes that are compared, texts that others wrote, and this program, which names the words.
NOT_READ = re.compile(
    r"^(tests/fuzz/corpus|tests/data/|client/python/kvtier/demo/.*\.(md|txt)$"
    r"|tests/python/test_demo\.py$|LICENSE$|tools/lint)")
# Documents that may use those words.
NO_WORDS = re.compile(r"^docs/benchmarks/")

# Words that are not written here, as regular expressions, and words to write in their place.
WORDS = {
    r"nobody": "name the subject: no process, no client, no thread",
    r"everybody|somebody|anybody": "name the subject: a process, a client",
    r"who(so)?ever": "name the subject: the client that ..., the thread that ...",
    r"he|him|his|she|her": "it, or the name of the subject",
    r"hasten(s|ed|ing)?": "promote, prioritise",
    r"freshen(s|ed|ing)?": "touch",
    r"withdraw(s|n|al|ing)?|withdrew": "cancel, reject, roll back, erase",
    r"bury|buries|buried": "defer the deletion",
    r"this room|house of": "folder",
    r"prefills": "appends; prefill is the kernel, and what an engine does",
    r"endless[_ ]?cache": "infinite cache",
    r"[Ss]paceId": "NamespaceId",
    r"papers": "documents, manual pages",
    r"fmt::format_to": "text += fmt::format(...): the other compiles fmt's writing of numbers into each source",
}
PATTERN = re.compile("|".join(rf"(?P<w{i}>\b(?:{word})\b)" for i, word in enumerate(WORDS)),
                     re.IGNORECASE)


def tracked_files():
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        names = listed.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):  # a tarball
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
                 if not path.relative_to(ROOT).parts[0] in ("build", ".git")]
    for name in sorted(filter(None, names)):
        path = ROOT / name
        is_text = path.suffix in TEXT_SUFFIXES or path.name == "Dockerfile"
        if is_text and path.is_file() and not path.is_symlink() and not NOT_READ.match(name):
            yield name, path


def words_in(lines):
    for number, line in enumerate(lines, 1):
        for match in PATTERN.finditer(line):
            yield number, match[0], list(WORDS.values())[int(match.lastgroup[1:])]


def tests_without_subject():
    """Files of tests/unit/tiers that neither begin with a comment nor include the header that they test first."""
    for path in sorted((ROOT / "tests/unit/tiers").glob("*_test.cc")):
        first = path.read_text(encoding="utf-8").splitlines()[1]
        if not first.startswith(("// ", '#include "tiers/')):
            yield path.relative_to(ROOT)


def main():
    allowed = tuple(line for line in ALLOW_LIST.read_text().splitlines()
                    if line and not line.startswith("#") and "--all" not in sys.argv[1:])
    found = []
    passed = set()  # files that only the list lets pass

    def report(name, text):
        if name.startswith(tuple(entry for entry in allowed if entry.endswith("/"))) or name in allowed:
            passed.add(name)
        else:
            found.append(f"{name}:{text}")

    for name, path in tracked_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        is_source = path.suffix in SOURCE_SUFFIXES or path.name in ("CMakeLists.txt", "Dockerfile")
        if is_source and not any("SPDX-License-Identifier" in line for line in lines[:3]):
            report(name, "1: there is no SPDX line")
        if is_source and len(lines) > MAX_LINES:
            report(name, f"{MAX_LINES}: {len(lines)} lines, {MAX_LINES} at most")
        for number, line in enumerate(lines, 1):
            if path.suffix in C_SUFFIXES and len(line) > MAX_COLUMNS and COMMENT_LINE.match(line):
                report(name, f"{number}: a comment of {len(line)} columns, {MAX_COLUMNS} at most")
            if KERNELS.match(name) and INTERNAL_TO_FILE.match(line):
                report(name, f"{number}: internal to the file, so that nvcc names it by its directory")
        for number, word, better in words_in(lines) if not NO_WORDS.match(name) else ():
            report(name, f'{number}: "{word}" ({better})')
        for number, sentence in lint_sentences.faults(name, "\n".join(lines)):
            report(name, f"{number}: begin with the subject, and name it: {sentence[:80]}")
    for name in tests_without_subject():
        report(str(name), "2: say in a comment what is tested")
    if found:
        print("\n".join(found))
        sys.exit(1)
    print(f"ok; tools/lint_allow.txt lets {len(passed)} files pass")


main()
