# SPDX-License-Identifier: Apache-2.0
"""How a worker notices other weights, with torch and without vLLM."""

import types
import unittest
from unittest import mock

from kvtier import Retention
from kvtier.vllm.connector_worker import StepPlan, WorkerSide
from kvtier.vllm.rows import key_of
from kvtier.vllm.transfers import Transfers
from test_connector_unit import BLOCK_TOKENS, hash_of
from link_case import LinkCase
from test_worker_unit import block_list

try:
    import torch
    from kvtier.vllm import weight_watch
    from kvtier.vllm.weight_watch import LOOK_S, PAUSE_S, PIECE_BYTES, TENSORS, WeightWatch
except ImportError as error:
    raise unittest.SkipTest(f"no torch: {error}") from error


class Model(torch.nn.Module):
    def __init__(self, layers=3, size=64):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(layers))
        self.experts = torch.nn.Linear(size, size)


class WeightWatchCase(unittest.TestCase):
    def setUp(self):
        self.now = 0.0
        self.model = Model()
        self.watch = self.make_watch()

    def make_watch(self, **options):
        return WeightWatch(self.model, clock=lambda: self.now, **options)

    def step(self, pause_s=PAUSE_S):
        """After a pause. Whether other weights were noticed."""
        self.now += pause_s
        self.watch.look()
        self.watch.end_step()
        return self.watch.has_changed()


class WeightWatchTest(WeightWatchCase):
    def test_weights_that_stay_are_noticed_never(self):
        self.assertEqual({self.step() for _ in range(100)}, {False})
        self.assertEqual(self.watch.answered(), self.watch.looks())

    def test_each_way_to_write_them_is_noticed(self):
        """Most of these torch does not count as writes."""
        weight = self.model.layers[1].weight
        other = torch.ones_like(weight)

        def replace():
            self.model.layers[1].weight = torch.nn.Parameter(other.clone())

        def rename():
            self.model.layers[1].other = torch.nn.Parameter(other.clone())
            del self.model.layers[1].bias

        ways = {
            "in place": lambda: weight.data.copy_(other * 2),
            "through .data": lambda: setattr(weight, "data", other * 3),
            "a new parameter": replace,
            "under another name": rename,
            "loading": lambda: self.model.load_state_dict(Model().state_dict(), strict=False),
        }
        for way, write in ways.items():
            with self.subTest(way):
                self.watch.begin_epoch()
                self.assertFalse(self.step())
                with torch.no_grad():
                    write()
                self.assertTrue(self.step())
                self.assertTrue(self.step())

    def test_a_new_epoch_learns_the_weights_anew(self):
        self.step()
        with torch.no_grad():
            self.model.layers[0].weight.zero_()
        self.assertTrue(self.step())
        self.watch.begin_epoch()
        self.assertFalse(self.step())
        self.assertFalse(self.step())

    def test_a_busy_engine_is_looked_at_now_and_then(self):
        self.step()
        with torch.no_grad():
            self.model.layers[0].weight.zero_()
        steps = 1
        while not self.step(PAUSE_S / 2):
            steps += 1
        self.assertAlmostEqual(steps * PAUSE_S / 2, LOOK_S, delta=PAUSE_S)

    def test_experts_that_vllm_moves_are_left_out(self):
        self.watch = self.make_watch(moves_experts=True)
        self.step()
        with torch.no_grad():
            self.model.experts.weight.zero_()
        self.assertFalse(self.step())
        with torch.no_grad():
            self.model.layers[0].bias.zero_()
        self.assertTrue(self.step())

    def test_parameters_of_any_order_and_type_are_looked_at(self):
        weights = [
            torch.ones(300, 200).t(),
            torch.ones(50, 70, dtype=torch.bfloat16),
            torch.ones((), dtype=torch.float64),
            torch.zeros(4, 4, dtype=torch.int8),
            torch.ones(100)[10:20],
        ]
        for weight in weights:
            self.model = torch.nn.Module()
            self.model.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.watch = self.make_watch()
            self.assertFalse(self.step())
            weight += 1
            self.assertTrue(self.step())

    def test_of_a_large_model_little_is_read(self):
        self.model = Model(layers=200, size=128)
        self.watch = self.make_watch()
        self.step()
        self.assertLessEqual(self.watch._expected.nbytes, TENSORS * PIECE_BYTES)
        with torch.no_grad():
            for layer in self.model.layers[100:120]:
                layer.weight.zero_()
        self.assertTrue(self.step())

    def test_a_model_without_parameters_never_changes(self):
        self.model = torch.nn.Module()
        self.watch = self.make_watch()
        self.assertEqual([self.step(), self.step()], [False, False])


class WorkerWatchTest(WeightWatchCase, LinkCase):
    def setUp(self):
        LinkCase.setUp(self)
        WeightWatchCase.setUp(self)
        link = self.open_link()
        self.ask_until(link, [0])
        self.side = WorkerSide(
            Transfers(link, settle_s=0), [BLOCK_TOKENS], Retention.EXTENDED, watch=self.watch
        )
        self.begin(StepPlan(stores=[block_list(1, number=1)]))
        self.end()

    def begin(self, plan, tokens=1, pause_s=PAUSE_S):
        self.now += pause_s
        self.side.begin_step(plan, tokens)
        self.side.begin(plan)

    def end(self):
        self.side.poll()
        self.side.end_step()

    def update(self):
        with torch.no_grad():
            self.model.layers[0].weight.add_(1)

    def test_what_was_computed_before_the_update_is_not_loaded_after_it(self):
        self.update()
        self.begin(StepPlan(loads={"r": [block_list(1)]}), tokens=0)
        self.end()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))
        self.assertEqual(self.side.take_failed_keys(), {key_of(hash_of(1), 0)})

    def test_a_step_without_work_does_not_hide_the_pause_of_an_update(self):
        self.update()
        self.begin(StepPlan(), tokens=0)
        self.end()
        self.begin(StepPlan(loads={"r": [block_list(1)]}), tokens=0, pause_s=PAUSE_S / 10)
        self.end()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))

    def test_a_load_that_an_update_overtakes_fails(self):
        self.daemon.region.hold = True
        self.begin(StepPlan(loads={"r": [block_list(1)]}), tokens=0)
        self.end()
        self.update()
        self.daemon.region.release()
        self.begin(StepPlan(), tokens=0)
        self.end()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))

    def test_until_a_new_epoch_begins_nothing_is_stored(self):
        self.update()
        for number in (2, 3):
            self.begin(StepPlan(stores=[block_list(number, number=number)]))
            self.end()
        self.assertEqual(set(self.daemon.blocks), {hash_of(1)})
        self.assertEqual(self.side.take_stored(), {1: 1, 2: 1, 3: 1})
        self.side.turn(1)
        self.begin(StepPlan(1, stores=[block_list(4, number=4)]))
        self.end()
        self.assertEqual(set(self.daemon.blocks), {hash_of(1), hash_of(4)})

    def test_the_scheduler_is_told_once_in_which_epoch(self):
        self.assertEqual(self.side.take_outdated(), -1)
        self.update()
        self.begin(StepPlan())
        self.assertEqual([self.side.take_outdated() for _ in range(2)], [0, -1])
        self.side.turn(5)
        self.begin(StepPlan(5))
        self.assertEqual(self.side.take_outdated(), -1)
        self.update()
        self.begin(StepPlan(5))
        self.assertEqual(self.side.take_outdated(), 5)

    def answer_later(self):
        """As a GPU that is busy with the step before: a look has its answer when `arrive` is called."""
        arrived = []
        event = types.SimpleNamespace(query=lambda: bool(arrived))
        answers = mock.patch.object(weight_watch, "_to_host", lambda answer: (answer, event))
        answers.start()
        self.addCleanup(answers.stop)
        return lambda: arrived.append(True)

    def test_a_load_is_not_reported_before_a_look_has_answered(self):
        arrive = self.answer_later()
        self.begin(StepPlan(loads={"r": [block_list(1)]}), tokens=0)
        self.end()
        self.assertEqual(self.side.take_loaded(), (set(), set()))
        arrive()
        self.end()
        self.assertEqual(self.side.take_loaded(), ({"r"}, set()))

    def test_a_load_that_ends_before_a_look_has_answered_fails_by_its_answer(self):
        self.daemon.region.hold = True
        self.begin(StepPlan(loads={"r": [block_list(1)]}), tokens=0)
        self.end()
        arrive = self.answer_later()
        self.update()
        self.daemon.region.release()
        self.begin(StepPlan(), tokens=0)
        self.end()
        self.assertEqual(self.side.take_loaded(), (set(), set()))
        arrive()
        self.end()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))
        self.assertEqual(self.side.take_failed_blocks(), {1})

    def test_ends_are_noticed_although_each_step_s_look_answers_after_the_next_has_begun(self):
        """As while an engine computes step after step."""
        arrive = self.answer_later()
        self.begin(StepPlan(loads={"r": [block_list(1)]}, stores=[block_list(2, number=2)]))
        self.side.take_stored()
        self.end()
        self.assertEqual((self.side.take_stored(), self.side.take_loaded()[0]), ({2: 1}, set()))
        arrive()
        self.answer_later()
        self.begin(StepPlan())
        self.end()
        self.assertEqual(self.side.take_loaded(), ({"r"}, set()))


if __name__ == "__main__":
    unittest.main()
