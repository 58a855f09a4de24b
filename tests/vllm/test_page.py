# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/engines/VLLM.md, as printed there: a server that is started anew answers
from the daemon's blocks."""

import unittest

from server_case import ServerCase


class PageTest(ServerCase):
    def test_a_server_that_is_started_anew_answers_from_what_the_daemon_has(self):
        daemon = self.start_daemon()
        server = self.serve()
        computed = self.complete()
        self.assertEqual(self.blocks("lookup", "host", "disk"), 0)
        self.wait_for("vllm", server, lambda: self.blocks("store", "copied") > 0)
        self.kill(server)

        server = self.serve()
        self.assertEqual(self.complete(), computed)
        self.assertGreater(self.blocks("lookup", "host", "disk"), 0)
        self.assertGreater(self.blocks("load", "copied"), 0)
        # The line that the page shows under "In the log".
        self.assertIn("kvtier: the daemon has the engine's memory", self.log_of("vllm"))

        self.kill(daemon)
        self.assertEqual(self.complete(), computed)


if __name__ == "__main__":
    unittest.main()
