# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector on vLLM's own KV cache."""

import unittest

from cache_tests import CacheTests


class ConnectorTest(CacheTests, unittest.TestCase):
    options = {"connector": True}


if __name__ == "__main__":
    unittest.main()
