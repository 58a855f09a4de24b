#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the training text: the King James Bible and Jane Austen's six novels.

All of it is in the public domain. It comes from Debian packages, which are downloaded and unpacked
but not installed:
  bible-kjv, bible-kjv-text   the text (1611) and the program that prints it
  r-cran-janeaustenr          the novels (1811-1818), as Project Gutenberg transcribed them

The output has one verse or paragraph a line and a blank line between chapters.
"""

import argparse
import pathlib
import re
import subprocess
import zlib

PACKAGES = ("bible-kjv", "bible-kjv-text", "r-cran-janeaustenr")
R_STRING_VECTOR = 16
# "X\n", three version words, then the length and name of the native encoding ("UTF-8").
R_HEADER_BYTES = 2 + 12 + 4 + 5


def unpack_packages(work: pathlib.Path) -> pathlib.Path:
  """Downloads the packages with apt and returns the root of their unpacked files."""
  work.mkdir(parents=True, exist_ok=True)
  subprocess.run(["apt-get", "download", *PACKAGES], cwd=work, check=True)
  root = work / "root"
  for package in sorted(work.glob("*.deb")):
    subprocess.run(["dpkg", "-x", package, root], check=True)
  return root


def read_bible(root: pathlib.Path) -> str:
  """The Bible, one verse a line, chapters apart by a blank line, without verse numbers."""
  command = [root / "usr/bin/bible", "-p", root / "usr/lib", "-f", "gen1:1-rev22:21"]
  printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
  lines = []
  last_chapter = None
  for verse in printed.splitlines():
    reference, text = verse.split(" ", 1)
    chapter = reference.split(":")[0]
    if last_chapter not in (None, chapter):
      lines.append("")
    last_chapter = chapter
    lines.append(text.strip())
  return "\n".join(lines) + "\n"


def r_strings(serialized: bytes) -> list[str]:
  """The elements of one character vector in R's XDR serialization."""

  def word(at: int) -> int:
    return int.from_bytes(serialized[at:at + 4], "big")

  position = R_HEADER_BYTES
  if serialized[:2] != b"X\n" or word(position) != R_STRING_VECTOR:
    raise ValueError("not a serialized character vector")
  count = word(position + 4)
  position += 8
  strings = []
  for _ in range(count):
    length = word(position + 4)  # after the element's flags
    strings.append(serialized[position + 8:position + 8 + length].decode())
    position += 8 + length
  return strings


def read_novels(root: pathlib.Path) -> list[list[str]]:
  """The printed lines of each novel, from the package's lazy-load database."""
  data = (root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
  novels = []
  while data:
    inflate = zlib.decompressobj()
    novels.append(r_strings(inflate.decompress(data[4:])))  # after the inflated length
    data = inflate.unused_data
  return novels


def join_paragraphs(lines: list[str]) -> str:
  """One paragraph a line; headings of chapters keep a blank line before them."""
  text = "\n".join(line.strip() for line in lines)
  paragraphs = []
  for paragraph in re.split(r"\n{2,}", text):
    joined = re.sub(r"\s+", " ", paragraph.replace("_", "")).strip()
    if re.match(r"(chapter|volume) [ivxlc0-9]+", joined, re.IGNORECASE):
      paragraphs.append("")
    if joined:
      paragraphs.append(joined)
  return "\n".join(paragraphs) + "\n"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--work", type=pathlib.Path, default="/tmp/kvtier-text",
                      help="where the packages are unpacked")
  parser.add_argument("--output", type=pathlib.Path, required=True)
  arguments = parser.parse_args()

  root = unpack_packages(arguments.work)
  documents = [read_bible(root), *map(join_paragraphs, read_novels(root))]
  text = "\n".join(documents).encode("ascii", "replace")
  arguments.output.write_bytes(text)
  print(f"{arguments.output}: {len(text)} bytes from {len(documents)} documents")


if __name__ == "__main__":
  main()
