# SPDX-License-Identifier: Apache-2.0
"""LMCache's multiprocess server, with the arguments of its own program."""

import runpy
import signal

import lmcache_case  # noqa: F401 - imported because it makes `import lmcache` find the wheel's

if __name__ == "__main__":
    # As LMCache's program does, which ends by KeyboardInterrupt.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runpy.run_module("lmcache.v1.multiprocess.server", run_name="__main__")
