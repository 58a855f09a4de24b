# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector beside another connector, under vLLM's MultiConnector."""

import unittest

from cache_tests import BLOCK_TOKENS, CACHED_TOKENS, PROMPTS, EngineCase


class BesideAnotherTest(EngineCase, unittest.TestCase):
    """The other is vLLM's example, which keeps each prompt in files and is asked second."""

    @classmethod
    def start_engine(cls, model=None, **options):
        files = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(cls.directory / "files")},
        }
        return super().start_engine(model, connectors=["kvtier", files], **options)

    def test_the_daemon_serves_what_vllm_forgets_and_its_figures_are_read(self):
        before = self.engine.metrics()
        self.assertEqual(self.generate(), [0] * PROMPTS)
        self.engine.forget()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        rows = PROMPTS * CACHED_TOKENS // BLOCK_TOKENS
        self.assertEqual(self.counted("load:copied", before), rows)

    def test_the_other_serves_when_the_daemon_was_killed(self):
        self.store()
        before = self.engine.metrics()
        self.daemon.kill()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(self.counted("load:copied", before), 0)
        self.daemon.start()


if __name__ == "__main__":
    unittest.main()
