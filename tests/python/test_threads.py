# SPDX-License-Identifier: Apache-2.0
"""Many threads on one connection, and a daemon that goes away under them."""

import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, DaemonTestCase, prompt

THREADS = 4
ROUNDS = 25


class ThreadsTest(DaemonTestCase):
    pool_blocks = 64
    host_blocks = 128

    def run_one(self, pool, seed):
        """A sequence of one of a few prompts. None without a daemon, else whether all bytes of its
        cached blocks were right while it was protected."""
        tokens = prompt(blocks=4 + seed % 3, seed=seed % 5)
        sequence = pool.open_sequence(tokens, leave_tokens=0)
        with sequence:
            if not sequence.available:
                return None
            try:
                while not sequence.wait():
                    pass
                table = sequence.block_table()
                memory = sequence.memory().block_bytes()
                cached = sequence.cached_tokens // BLOCK_TOKENS
                right = all((memory[table[i]] == self.fill(tokens, i)).all() for i in range(cached))
                if not sequence.check():
                    return None
                for i in range(cached, len(table)):
                    memory[table[i]] = self.fill(tokens, i)
                sequence.mark_computed(len(tokens))
            except kvtier.StaleHandleError:
                return None
        return right

    @staticmethod
    def fill(tokens, block):
        return np.uint8(int(tokens[block * BLOCK_TOKENS]) % 256)

    def test_threads_share_a_connection_and_see_no_wrong_byte(self):
        pool = self.attach()
        with ThreadPoolExecutor(THREADS) as threads:
            results = list(threads.map(lambda i: self.run_one(pool, i), range(THREADS * ROUNDS)))
        self.assertEqual(set(results), {True})
        self.assertTrue(pool.connection.flush())
        self.assertEqual(pool.connection.stats().session_references, 0)
        self.assertEqual(pool.connection.take_errors().errors, [])

    def test_a_daemon_killed_under_load_costs_misses_only(self):
        pool = self.attach()
        stop = threading.Event()

        def work(seed):
            results = []
            while not stop.is_set():
                results.append(self.run_one(pool, seed + len(results)))
            return results

        with ThreadPoolExecutor(THREADS) as threads:
            futures = [threads.submit(work, i) for i in range(THREADS)]
            try:
                for _ in range(3):
                    self.daemon.kill()
                    self.daemon.start()
            finally:
                stop.set()
            for future in futures:
                self.assertNotIn(False, future.result())
        self.assertTrue(self.run_one(pool, 0))


if __name__ == "__main__":
    unittest.main()
