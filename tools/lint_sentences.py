# SPDX-License-Identifier: Apache-2.0
"""Finds sentences that begin with no subject, in comments, docstrings, pages and messages.

A sentence begins with its subject, a noun, or with a verb: never with What, Of, Who, Those or That. Nor
does "what" before "is", "was", "has" or "the" make a noun: the noun itself says more. Questions may have
both.
"""

import io
import os
import re
import tokenize

C_SUFFIXES = {".c", ".cc", ".cu", ".cuh", ".h", ".hpp", ".in"}
HASH_SUFFIXES = {".cmake", ".conf", ".service", ".sh", ".toml", ".yaml", ".yml"}
HASH_NAMES = {"CMakeLists.txt", "Dockerfile", "requirements.txt"}

OPENING = re.compile(r'["\'(`*_\[#\s]*(?:What|Of|Who|Those|That)\b(?![(_]|::|=)')
WHAT_AS_NOUN = re.compile(r"\bwhat\s+(?:is|was|are|were|has|the|it)\b", re.IGNORECASE)
ANY_FAULT = re.compile(r"\b(?:What|Of|Who|Those|That)\b|\bwhat\b[^a-z]*?(?:is|was|are|were|has|the|it)\b")
SENTENCE_END = re.compile(r'(?<=[.!?:])["\')`*]*\s+(?=["\'(`*\[]*[A-Z])')
BULLET = re.compile(r"(?:[-*]|\d+[.)])\s+")
# Comments, and strings, so that a comment's marks within a string are none.
C_TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|\b(?:u8|[uUL])?R"([^()\\\s]{0,16})\(.*?\)\1"'
    r'|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
C_MARKS = re.compile(r"^\s*(?://+[!<]*|/\*+!?|\*+(?=\s|$))|\*+/\s*$")
MESSAGE = -1  # a column that no comment has
PYTHON_QUOTES = re.compile(r'^[rRbBuUfF]*("""|\'\'\'|"|\')|("""|\'\'\'|"|\')$')


class Messages:
    """Joins string literals with nothing but space between them to one message."""

    def __init__(self):
        self.line, self.words, self.is_open = 0, None, False

    def add(self, line, words):
        """Yields the message before, if this one does not continue it."""
        if self.words is not None and self.is_open:
            self.words += words
        else:
            yield from self.end()
            self.line, self.words = line, words
        self.is_open = True

    def end(self):
        if self.words is not None:
            yield self.line, MESSAGE, self.words, False
        self.words = None


def c_texts(text, with_messages):
    """Yields (line, column, text, whether code stands before it) of comments and messages."""
    messages, line, counted, end_of_string = Messages(), 1, 0, 0
    for match in C_TOKENS.finditer(text):
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        if match[0].startswith(("//", "/*")):
            begin = text.rfind("\n", 0, counted) + 1
            yield line, counted - begin, match[0], bool(text[begin:counted].strip())
        elif with_messages and not match[0].startswith("'"):
            messages.is_open = not text[end_of_string:counted].strip()
            raw = match[1] is not None
            yield from messages.add(line, match[0][match[0].index("(") + 1:-2 - len(match[1])] if raw
                                    else unescaped(match[0][1:-1]))
            end_of_string = match.end()
    yield from messages.end()


def python_texts(text, with_messages):
    """As `c_texts`; a docstring is a string that begins a statement."""
    messages, lines, begins = Messages(), text.splitlines(), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        is_string = token.type == tokenize.STRING
        if token.type == tokenize.COMMENT or is_string and begins:
            after_code = bool(lines[line - 1][:column].strip())
            yield line, column, PYTHON_QUOTES.sub("", token.string), after_code
        elif is_string and with_messages:
            yield from messages.add(line, unescaped(PYTHON_QUOTES.sub("", token.string)))
        elif token.type not in (tokenize.COMMENT, tokenize.NL):
            messages.is_open = False
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    yield from messages.end()


def unescaped(text):
    return text.replace("\\n", "\n").replace('\\"', '"')


def lines_of_source(texts):
    """Yields (line, column, whether code stands before it, words) of each line of the texts."""
    for line, column, text, after_code in texts:
        is_line_comment = column != MESSAGE and text.startswith(("//", "#"))
        if not is_line_comment:
            yield line, column, False, ""
        for more, part in enumerate(text.split("\n")):
            words = C_MARKS.sub("", part.strip()) if column != MESSAGE else part
            words = re.sub(r"^#+:?", "", words.strip()).strip()
            place = line if column == MESSAGE else line + more
            yield place, column, after_code and more == 0, "" if "SPDX-" in words else words
        if not is_line_comment:
            yield place, column, False, ""


def lines_of_hash_comments(text):
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.match(r"(\s*)#+(?!!)\s*(.*)", line):
            yield number, len(match[1]), False, "" if "SPDX-" in match[2] else match[2]


def lines_of_page(text):
    """Each cell of a table and each heading is a paragraph of its own; code is left out."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        fenced ^= bool(re.match(r"\s*(```|~~~)", line))
        words = "" if fenced or re.match(r"\s*(```|~~~)", line) else line.strip().lstrip("> ")
        if words.startswith(("#", "|")):
            for cell in words.strip("|").split("|"):
                yield number, 0, False, cell.strip()
                yield number, 0, False, ""
        else:
            yield number, 0, False, words


def paragraphs(lines):
    """Lists of (line, words): lines that go on from one to the next."""
    paragraph = []
    last_line, last_column, beside_code = 0, 0, False
    for line, column, after_code, words in lines:
        joins = line <= last_line + 1 and not after_code and (not beside_code or column == last_column)
        if paragraph and (not joins or not words or BULLET.match(words)):
            yield paragraph
            paragraph = []
        if words:
            paragraph.append((line, BULLET.sub("", words, count=1) if BULLET.match(words) else words))
        last_line, last_column, beside_code = line, column, after_code or joins and beside_code
    if paragraph:
        yield paragraph


def sentences(paragraph):
    text, begins = "", []
    for _, words in paragraph:
        begins.append(len(text))
        text += words + " "
    begin = 0
    for end in [match.end() for match in SENTENCE_END.finditer(text)] + [len(text)]:
        line = paragraph[sum(one <= begin for one in begins) - 1][0]
        yield line, text[begin:end].strip()
        begin = end


def is_faulty(sentence):
    if sentence.rstrip("\"')`*").endswith("?") or " " not in sentence:
        return False
    without_code = re.sub(r"`[^`]*`", "`x`", sentence)
    return bool(OPENING.match(without_code) or WHAT_AS_NOUN.search(without_code))


def lines_of(name, text, is_test):
    base, suffix = os.path.basename(name), os.path.splitext(name)[1]
    if suffix in C_SUFFIXES and base != "kvtier.pc.in":
        return lines_of_source(c_texts(text, not is_test))
    if suffix == ".py":
        return lines_of_source(python_texts(text, not is_test))
    if suffix == ".md":
        return lines_of_page(text)
    if suffix in HASH_SUFFIXES or base in HASH_NAMES:
        return lines_of_hash_comments(text)
    return ()


def faults(name, text):
    """Yields (line, sentence). Strings of tests are data and no messages."""
    if not ANY_FAULT.search(text):  # most files; to read them by sentences takes long
        return
    is_test = name.startswith("tests/")
    for paragraph in paragraphs(lines_of(name, text, is_test)):
        yield from (found for found in sentences(paragraph) if is_faulty(found[1]))
