# SPDX-License-Identifier: Apache-2.0
"""lint_sentences.py SOURCE: tools/lint.py finds each sentence without a subject, and no other."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / "tools"))
import lint_sentences  # noqa: E402

CODE = """// SPDX-License-Identifier: Apache-2.0
// Who knows. What is it?
int a;  // what the other fields lack
// The session keeps these blocks. That of the
// other side is here.
/* Fine.
 * Of checked
 * parameters. */
int f() { return Error("what was " "held is lost"); }
int g;  // the first
        // one. Those of g
auto text = R"(
What computing took.

A line about what a client sees, and "Of" in the midst.
)";
"""
CODE_FAULTS = [
    (2, "Who knows."),
    (3, "what the other fields lack"),
    (4, "That of the other side is here."),
    (7, "Of checked parameters."),
    (11, "Those of g"),
]
MESSAGE_FAULTS = [(9, "what was held is lost"), (12, "What computing took.")]

PYTHON = '''# SPDX-License-Identifier: Apache-2.0
"""A module. What it does.

Those that go."""
def f():
    """Of one."""
    g("what the "
      "thing does")  # what is left
    # Of two
    # lines
    return "Of"  # one word is no sentence
'''
PYTHON_FAULTS = [
    (2, "What it does."),
    (4, "Those that go."),
    (6, "Of one."),
    (7, "what the thing does"),
    (8, "what is left"),
    (9, "Of two lines"),
]

PAGE = """# What is promised

Text. **What is** here. `What is` code. What is this?

| a | what it is |
|---|---|
```
What is code
```
* Those that go
  on.
"""
PAGE_FAULTS = [
    (1, "# What is promised"),
    (3, "**What is** here."),
    (5, "what it is"),
    (10, "Those that go on."),
]


def expect(name, text, wanted):
    found = sorted(lint_sentences.faults(name, text))
    if found != sorted(wanted):
        sys.exit(f"{name}: found {found}\nwanted {sorted(wanted)}")


expect("tiers/a.cc", CODE, CODE_FAULTS + MESSAGE_FAULTS)
expect("tests/unit/a.cc", CODE, CODE_FAULTS)
expect("tools/a.py", PYTHON, PYTHON_FAULTS)
expect("docs/A.md", PAGE, PAGE_FAULTS)
expect("tools/a.sh", "#!/bin/sh\n# Of a\n# shell.\n", [(2, "Of a shell.")])
