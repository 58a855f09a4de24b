# SPDX-License-Identifier: Apache-2.0
"""Where the programs under test are, as the build says in the environment."""

from __future__ import annotations

import os
import pathlib

SOURCE = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = SOURCE / "client" / "python"


def daemon_program() -> str:
    """$KVTIERD, else the program of a release build."""
    return os.environ.get("KVTIERD") or str(SOURCE / "build/release/bin/kvtierd")
