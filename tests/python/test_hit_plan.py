# SPDX-License-Identifier: Apache-2.0
"""Which blocks are worth loading: costs of computing, and sequences with a plan on a real daemon.
"""

import math
import unittest

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, DaemonTestCase, prompt
from kvtier import ComputeCost, HitPlan, Miss
from test_sequence import compute, holds


class ComputeCostTest(unittest.TestCase):
    def test_a_cost_is_found_again_from_its_samples(self):
        cost = ComputeCost(per_token_us=33.0, per_pair_us=0.0004, fixed_us=20_000.0)
        sizes = ((512, 0), (4096, 0), (16_000, 0), (512, 9_488), (4096, 12_000))
        found = ComputeCost.fit((n, m, cost.ms(n, m)) for n, m in sizes)
        self.assertAlmostEqual(found.per_token_us, 33.0, places=3)
        self.assertAlmostEqual(found.per_pair_us, 0.0004, places=8)
        self.assertAlmostEqual(found.fixed_us, 20_000.0, places=1)

    def test_no_coefficient_is_negative(self):
        found = ComputeCost.fit([(100, 0, 10.0), (200, 0, 30.0), (400, 0, 90.0)])
        self.assertGreaterEqual(min(found.per_token_us, found.per_pair_us, found.fixed_us), 0.0)

    def test_one_sample_is_enough_and_none_is_not(self):
        self.assertAlmostEqual(ComputeCost.fit([(1000, 0, 50.0)]).ms(1000), 50.0)
        for wrong in ((0, 0, 1.0), (1, 0, 0.0), (1, -1, 1.0), (1, 0, math.nan), (1, 0, math.inf)):
            with self.subTest(wrong), self.assertRaises(ValueError):
                ComputeCost.fit([(1000, 0, 50.0), wrong])
        with self.assertRaises(ValueError):
            ComputeCost.fit([])

    def test_nothing_takes_no_time(self):
        self.assertEqual(ComputeCost(1.0, 1.0, 1.0).ms(0, 500), 0.0)


class HitPlanTest(DaemonTestCase):
    def publish(self, pool, tokens):
        with pool.open_sequence(tokens) as sequence:
            compute(sequence, tokens, sequence.cached_tokens)
            sequence.mark_computed(len(tokens))
        pool.connection.flush()

    def test_what_the_pool_has_is_served_with_any_plan(self):
        pool = self.attach()
        tokens = prompt(blocks=4, extra_tokens=3)
        self.publish(pool, tokens)
        pool.set_compute_cost(ComputeCost(per_token_us=0.001))
        for plan in HitPlan:
            with pool.open_sequence(tokens, plan=plan) as sequence:
                self.assertTrue(sequence.wait())
                self.assertEqual(sequence.cached_tokens, 4 * BLOCK_TOKENS)
                self.assertTrue(holds(sequence, tokens[: 4 * BLOCK_TOKENS]))

    def test_an_expectation_is_told_with_a_plan_alone(self):
        pool = self.attach()
        pool.set_compute_cost(ComputeCost(per_token_us=1000.0))
        tokens = prompt(blocks=2)
        with pool.open_sequence(tokens) as sequence:
            self.assertEqual(sequence.info().ready_ms, 0.0)
        with pool.open_sequence(tokens, plan=HitPlan.CUT) as sequence:
            self.assertAlmostEqual(sequence.info().ready_ms, len(tokens))
            self.assertEqual(sequence.info().miss, Miss.UNKNOWN)

    def test_a_cost_that_is_none_is_refused(self):
        pool = self.attach()
        for wrong in (ComputeCost(-1.0), ComputeCost(0.0, float("nan")), ComputeCost(0.0, 0.0, 1e12)):
            with self.assertRaises(kvtier.InvalidArgumentError):
                pool.set_compute_cost(wrong)



if __name__ == "__main__":
    unittest.main()
