# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines, for three shells."""

HEAD = "# Completion of {}. Generated; do not edit.\n"


# ---- bash: the script looks for the command among the words, then offers by "command:option" ----

BASH = """{name}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= options= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      {takes_value}) ((i++)) ;;
      -*) ;;
      *) command=${{COMP_WORDS[i]}}; break ;;
    esac
  done
  COMPREPLY=()
  case $command:$prev in
{values}  esac
  case $command in
    '') COMPREPLY=($(compgen -W '{commands}' -- "$cur")) ;;
{words}  esac
  [[ $cur == -* ]] && COMPREPLY=($(compgen -W "$options {options}" -- "$cur"))
  return 0
}}
complete -F {name} {program}
"""


def _bash_offer(option):
    if option.kind == "choice":
        return f"COMPREPLY=($(compgen -W '{' '.join(option.choices)}' -- \"$cur\"))"
    if option.kind in ("file", "directory"):
        flag = "-d" if option.kind == "directory" else "-f"
        return f'COMPREPLY=($(compgen {flag} -- "$cur")); compopt -o filenames 2>/dev/null'
    return ":"


def _names(options):
    return [name for option in options for name in option.names]


def bash(program):
    def values(command, pattern):
        return "".join(
            f"    {'|'.join(f'{pattern}:{name}' for name in option.names)}) "
            f"{_bash_offer(option)}; return ;;\n"
            for option in command.options if option.names and option.kind != "flag")

    def word(command):
        arguments = [option for option in command.options if option.positional]
        offer = _bash_offer(arguments[0]) if arguments else ":"
        return f"    {command.name}) options='{' '.join(_names(command.options))}'; {offer} ;;\n"

    takes_value = [option for option in program.options if option.kind != "flag"]
    return HEAD.format(program.name) + BASH.format(
        name=f"_{program.name}", program=program.name,
        takes_value="|".join(_names(takes_value)),
        values=values(program, "*") + "".join(values(c, c.name) for c in program.commands),
        commands=" ".join(command.name for command in program.commands),
        words="".join(map(word, program.commands)), options=" ".join(_names(program.options)))


# ---- zsh: _arguments with a specification for each option ----

def _zsh_text(text):
    for special in "\\[]:":
        text = text.replace(special, "\\" + special)
    return text.replace("'", "'\\''")


def _zsh_specs(options, indent):
    specs = ""
    for option in options:
        action = {"flag": "", "choice": f":{option.argument}:({' '.join(option.choices)})",
                  "file": f":{option.argument}:_files",
                  "directory": f":{option.argument}:_files -/",
                  "other": f":{_zsh_text(option.argument)}: "}[option.kind]
        many = "*" if option.repeated else ""
        for name in option.names:
            specs += f" \\\n{indent}'{many}{name}[{_zsh_text(option.help)}]{action}'"
        if option.positional:
            specs += f" \\\n{indent}'{many or 1}{action}'"
    return specs


def zsh(program):
    text = f"#compdef {program.name}\n{HEAD.format(program.name)}_{program.name}() {{\n"
    if not program.commands:
        text += f"  _arguments -s{_zsh_specs(program.options, '    ')}\n"
        return text + f"}}\n_{program.name} \"$@\"\n"
    text += "  local context state state_descr line\n  typeset -A opt_args\n"
    text += (f"  _arguments -s -C{_zsh_specs(program.options, '    ')} \\\n"
             "    '1: :->command' '*:: :->arguments' && return\n"
             "  case $state in\n    command)\n      local -a commands\n      commands=(\n")
    for command in program.commands:
        text += f"        '{command.name}:{_zsh_text(command.summary)}'\n"
    text += "      )\n      _describe command commands ;;\n    arguments)\n      case $line[1] in\n"
    for command in program.commands:
        options = command.options + [option for option in program.options if not option.is_help]
        text += f"        {command.name}) _arguments -s{_zsh_specs(options, '          ')} ;;\n"
    return text + f"      esac ;;\n  esac\n}}\n_{program.name} \"$@\"\n"


# ---- fish: a line for each option ----

def _fish_text(text):
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _fish_option(program, condition, option):
    names = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}"
                    for name in option.names)
    value = {"flag": "", "choice": f" -x -a '{' '.join(option.choices)}'", "file": " -r -F",
             "directory": " -r -F", "other": " -x"}[option.kind]
    return f"complete -c {program}{condition}{names}{value} -d '{_fish_text(option.help)}'\n"


def fish(program):
    name = program.name
    text = HEAD.format(name) + f"complete -c {name} -f\n"
    text += "".join(_fish_option(name, "", option) for option in program.options)
    for command in program.commands:
        text += (f"complete -c {name} -n __fish_use_subcommand -a {command.name} "
                 f"-d '{_fish_text(command.summary)}'\n")
        condition = f" -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            if not option.positional:
                text += _fish_option(name, condition, option)
            elif option.kind == "file":
                text += f"complete -c {name}{condition} -F\n"
    return text
