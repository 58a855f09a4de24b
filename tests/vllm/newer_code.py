#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Python code of a vLLM run on the CPU with the kernels of another version's build for CPUs.

    newer_code.py WHEEL SITE_PACKAGES OUTPUT_DIRECTORY

PyPI has a new vLLM for GPUs at once, and for CPUs later or never. WHEEL is the one for GPUs, SITE_PACKAGES
has the build for CPUs, and OUTPUT_DIRECTORY, which is to be put into PYTHONPATH, gets the code of the
one and links to the kernels of the other. A version whose kernels take other arguments fails where it
calls them. Bits that were computed so say nothing of the newer version's own kernels.
"""

import compileall
import pathlib
import re
import shutil
import sys
import zipfile

# Code for GPUs, which the CPU does not import.
UNUSED = ("vllm/third_party/", "vllm/vllm_flash_attn/")


def unpack(wheel, output):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            is_library = name.endswith(".so") or name == "vllm/vllm-rs"
            is_source = name.endswith((".cuh", ".cu", ".h", ".hpp"))
            if not is_library and not is_source:
                archive.extract(name, output)


def name_as_cpu_build(output):
    """The version ends in +cpu, by which vLLM chooses its platform."""
    facts = next(output.glob("vllm-*.dist-info"))
    metadata = facts / "METADATA"
    text = metadata.read_text()
    metadata.write_text(re.sub(r"^(Version: \S+)$", r"\1+cpu", text, count=1, flags=re.M))
    facts.rename(facts.with_name(facts.name.replace(".dist-info", "+cpu.dist-info")))


def main():
    wheel, site_packages, output = map(pathlib.Path, sys.argv[1:])
    shutil.rmtree(output, ignore_errors=True)
    unpack(wheel, output)
    name_as_cpu_build(output)
    for kernels in (site_packages / "vllm").glob("*.so"):
        (output / "vllm" / kernels.name).symlink_to(kernels.resolve())
    # Tests write no byte code, and would compile all of it in each process.
    compileall.compile_dir(output, quiet=2, rx=re.compile("|".join(UNUSED)))


if __name__ == "__main__":
    main()
