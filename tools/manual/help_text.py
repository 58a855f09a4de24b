# SPDX-License-Identifier: Apache-2.0
"""A program's commands and options, read from its `--help` (as CLI11 lays it out)."""

import dataclasses
import re

HELP_COLUMN = 30  # where the text of an option begins, or of the line below if the option is long
VALUE = re.compile(
    r"(?P<argument>[A-Z][^\s:=]*)"
    r"(?::(?:\{(?P<choices>[^}]*)\}|[A-Z]+(?: in \[[^\]]*\])?))?"
    r"(?:=(?P<default>.*?)| \[(?P<bracketed>[^\]]*)\])?"  # by CLI11's version
    r"(?P<repeated> \.\.\.)?(?P<required> REQUIRED)?(?: (?:Needs|Excludes): .*)?$")


@dataclasses.dataclass
class Option:
    names: list  # "-h", "--help"; none for a positional argument
    argument: str = ""  # "FILE"; empty for a flag
    help: str = ""
    default: str = ""
    choices: list = dataclasses.field(default_factory=list)
    required: bool = False
    repeated: bool = False

    @property
    def positional(self):
        return not self.names

    @property
    def is_help(self):
        return "--help" in self.names

    @property
    def term(self):
        return " ".join(filter(None, [", ".join(self.names), self.argument]))

    @property
    def kind(self):
        """The kind of completion of the value: choice, flag, directory, file, or other (nothing
        does)."""
        if self.choices:
            return "choice"
        return {"": "flag", "DIRECTORY": "directory", "FILE": "file", "PATH": "file",
                "TRACE": "file"}.get(self.argument, "other")


@dataclasses.dataclass
class Command:
    name: str
    summary: str = ""
    notes: str = ""  # what there is to say besides
    examples: list = dataclasses.field(default_factory=list)
    options: list = dataclasses.field(default_factory=list)
    commands: list = dataclasses.field(default_factory=list)


def read_option(left, text):
    name, _, value = left.partition(" ")
    # The texts say which options exclude each other where it matters.
    value = value.partition("Excludes:")[0].strip()
    option = Option(name.split(",") if name.startswith("-") else [], help=text)
    if value:
        match = VALUE.match(value)
        if not match:
            raise ValueError(f"this is no option's value as CLI11 writes it: {value}")
        option.argument = match["argument"]
        option.choices = match["choices"].split(",") if match["choices"] else []
        option.default = match["default"] or match["bracketed"] or ""
        option.required = bool(match["required"])
        option.repeated = bool(match["repeated"])
    return option


def rows(lines):
    """The rows of a section: what stands left, and its text."""
    for i, line in enumerate(lines):
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if line.startswith(" " * HELP_COLUMN):
            continue
        if following.startswith(" " * HELP_COLUMN):
            yield line.strip(), following.strip()
        else:
            yield line[:HELP_COLUMN].strip(), line[HELP_COLUMN:].strip()


def read(name, run):
    """REQUIRES: run(*words) returns the program's output for these arguments."""
    return _read(name, run("--help"), lambda command: run(command, "--help"))


def _read(name, text, run):
    command = Command(name)
    paragraphs = [block.splitlines() for block in text.strip().split("\n\n")]
    command.summary = paragraphs[0][0]
    for lines in paragraphs[1:]:
        if lines[0] in ("Positionals:", "Options:"):
            command.options += [read_option(*row) for row in rows(lines[1:])]
        elif lines[0] == "Subcommands:":
            command.commands = [_read(row[0], run(row[0]), run) for row in rows(lines[1:])]
        else:
            marks = [i for i, line in enumerate(lines) if line in ("Example:", "Examples:")]
            end = marks[0] if marks else len(lines)
            command.notes = " ".join(lines[:end])
            command.examples = [line.strip() for line in lines[end + 1:]]
    return command
