#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes manual pages and completions from the programs' own help.

    manual.py SHARE DATE KVTIERCTL KVTIERD [PANDOC]

runs at build time. Options and commands come from `--help`, the configuration's page from
docs/CONFIGURATION.md, the rest of the pages from the .md files beside this one; pandoc makes the
pages, which are left out where it is not given.
"""

import pathlib
import re
import subprocess
import sys

import completion
import help_text

TITLES = {
    "kvtierctl.1": "look at a KV cache daemon, check its blocks, and exercise it",
    "kvtierd.8": "keep KV cache blocks of LLM inference in three tiers",
    "kvtierd.toml.5": "configuration of kvtierd",
}


def escaped(text):
    """Text of a help, as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#+|~^$@-])", r"\\\1", text)


def option_list(options):
    items = []
    for option in options:
        names = option.argument + "..." if option.positional and option.repeated else option.term
        text = escaped(option.help)
        if option.choices:
            text += " One of " + ", ".join(f"`{choice}`" for choice in option.choices) + "."
        if option.default:
            text += f" The default is `{option.default}`."
        items.append(f"**{escaped(names)}**\n:   {text}\n")
    return "\n".join(items)


def usage(command):
    words = [command.name]
    if any(not option.positional and not option.is_help for option in command.options):
        words.append("[OPTIONS]")
    for option in command.options:
        if option.positional:
            word = option.argument + ("..." if option.repeated else "")
            words.append(word if option.required else f"[{word}]")
    return " ".join(words)


def command_list(commands):
    text = ""
    for command in commands:
        options = [option for option in command.options if not option.is_help]
        text += f"### {escaped(usage(command))}\n\n{escaped(command.summary)}\n\n"
        text += option_list(options) + "\n"
        if command.notes:
            text += escaped(command.notes) + "\n\n"
        if command.examples:
            text += "".join(f"    {example}\n" for example in command.examples) + "\n"
    return text


def config_page(reference):
    """The document's tables as lists of definitions, which a terminal has the width for."""
    text = reference.replace("# Configuration\n", "## DESCRIPTION\n", 1)
    text = re.sub(r"\n\[OPERATIONS\.md\].*\n.*\n", "", text)
    lines = []
    for line in text.splitlines():
        if line.startswith(("| key |", "|---|")):
            continue
        if line.startswith("| "):
            key, default, allowed, changes, meaning = re.split(r"(?<!\\) \| ", line[2:-2])
            lines += [f"**{key.strip('`')}**",
                      f":   {meaning} Allowed: {allowed}. The default is {default}. Changes on "
                      f"{changes}.", ""]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n\n## SEE ALSO\n\n**kvtierd**(8), **kvtierctl**(1)\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_page(share, page, markdown, date, version, pandoc):
    name, section = page.rsplit(".", 1)
    # Sections are headings of the second order, as in the documents; a page wants the first.
    man = subprocess.run(
        [pandoc, "--standalone", "--from=markdown-smart", "--to=man", "--shift-heading-level-by=-1",
         f"--metadata=title:{name.upper()}", f"--metadata=section:{section}",
         f"--metadata=date:{date}", f"--metadata=footer:kvtier {version}",
         "--metadata=header:kvtier"],
        input=f"## NAME\n\n{name} - {TITLES[page]}\n\n{markdown}", text=True, check=True,
        stdout=subprocess.PIPE).stdout
    # Removes everything that mandoc objects to: fonts that terminals lack, and a paragraph begun
    # right behind a heading, which begins one by itself.
    man = man.replace("\\f[C]\n", "").replace("\n\\f[R]\n.fi", "\n.fi")
    man = man.replace("\\f[V]", "\\f[B]")
    man = re.sub(r"(?m)^(\.S[HS] .*\n)\.PP\n", r"\1", man)
    # A minus that can be copied, in place of a hyphen.
    man = re.sub(r"(?m)^(?:[^.]|\.SS).*", lambda line: line[0].replace("-", "\\-"), man)
    write(share / f"man/man{section}/{page}", man)


def main(share, date, kvtierctl, kvtierd, pandoc=None):
    share = pathlib.Path(share)
    here = pathlib.Path(__file__).parent

    def output(*command):
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout

    programs = [help_text.read("kvtierctl", lambda *words: output(kvtierctl, *words)),
                help_text.read("kvtierd", lambda *words: output(kvtierd, *words))]
    for program in programs:
        name = program.name
        write(share / f"bash-completion/completions/{name}", completion.bash(program))
        write(share / f"zsh/vendor-completions/_{name}", completion.zsh(program))
        write(share / f"fish/vendor_completions.d/{name}.fish", completion.fish(program))
    if not pandoc:
        return
    version = output(kvtierd, "--version").split()[1]
    for program, page in zip(programs, ("kvtierctl.1", "kvtierd.8")):
        text = (here / f"{page}.md").read_text()
        text = text.replace("@OPTIONS@", option_list(program.options))
        text = text.replace("@COMMANDS@", command_list(program.commands))
        write_page(share, page, text, date, version, pandoc)
    reference = (here.parents[1] / "docs/CONFIGURATION.md").read_text()
    write_page(share, "kvtierd.toml.5", config_page(reference), date, version, pandoc)


if __name__ == "__main__":
    main(*sys.argv[1:])
