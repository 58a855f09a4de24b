# SPDX-License-Identifier: Apache-2.0
"""kvtier.kernels against torch, on a GPU; skipped where there is none."""

import math
import re
import unittest

import kvtier
from harness.paths import SOURCE
from kvtier import kernels

try:
    import torch
except ImportError:
    torch = None

Q_HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
# Lengths around the borders of pages and of what a kernel takes at once.
LENGTHS = [1, 16, 37, 0, 577, 2011]
SCALE = DIM**-0.5


def can_run() -> bool:
    if torch is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() == (9, 0)


def random(*shape, dtype=None, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda")
    return values.to(torch.bfloat16 if dtype is None else dtype)


def integers(values, dtype=None):
    return torch.tensor(values, dtype=dtype or torch.int32, device="cuda")


class Problem:
    """A pool of two layers whose second holds the sequences, in blocks taken at random."""

    def __init__(self, lengths, dtype=None, seed=1):
        self.lengths = lengths
        entries = max(1, -(-max(lengths) // PAGE))
        count = len(lengths) * entries
        pool = random(count + 5, 2, 2, PAGE, KV_HEADS, DIM, dtype=dtype, seed=seed)
        self.pool = pool
        self.k, self.v = pool[:, 1, 0], pool[:, 1, 1]
        shuffled = torch.randperm(count + 5, generator=torch.Generator().manual_seed(seed))[:count]
        self.table = shuffled.to(torch.int32).reshape(len(lengths), entries).cuda()
        self.tables = kernels.SequenceTables(self.table, integers(lengths))

    def dense(self, sequence):
        """K and V of one sequence, float64 [tokens, kv_heads, dim]."""
        length, blocks = self.lengths[sequence], self.table[sequence].long()
        return [x[blocks].reshape(-1, KV_HEADS, DIM)[:length].double() for x in (self.k, self.v)]


def reference(query, k, v, first_position=None, soft_cap=0.0, window=0):
    """Attention in float64 and its log-sum-exp. query: [tokens, heads, dim], the last ones of k if
    first_position is None."""
    tokens, length = query.shape[0], k.shape[0]
    if length == 0:
        return torch.zeros_like(query).double(), torch.full(query.shape[:2], -math.inf).cuda()
    k, v = (x.repeat_interleave(query.shape[1] // KV_HEADS, dim=1) for x in (k, v))
    scores = torch.einsum("thd,khd->htk", query.double(), k) * SCALE
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    first = length - tokens if first_position is None else first_position
    position = torch.arange(first, first + tokens, device="cuda")[:, None]
    key = torch.arange(length, device="cuda")[None, :]
    hidden = key > position
    if window:
        hidden |= key <= position - window
    scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    return torch.einsum("htk,khd->thd", scores.softmax(-1), v), lse.T


@unittest.skipUnless(can_run(), "no Hopper GPU, or no torch that can use it")
class KernelsOnGpuTest(unittest.TestCase):
    def assert_close(self, got, expected, tolerance=1e-2):
        """Relative to the expected values' size: 16 bits have three digits, fp8 sums fewer."""
        got, expected = got.double(), expected.double()
        self.assertFalse(bool(got.isnan().any()))
        error = (got - expected).norm() / expected.norm().clamp_min(1e-9)
        self.assertLess(float(error), tolerance)

    def check_decode(self, problem, query, **options):
        lse = torch.empty(query.shape[:2], device="cuda")
        cache = kernels.PagedKv(problem.k, problem.v)
        window = options.get("window_tokens", 0)
        got = kernels.decode(query, cache, problem.tables, lse=lse, **options)
        for i in range(len(problem.lengths)):
            k, v = problem.dense(i)
            expected, expected_lse = reference(
                query[i : i + 1], k, v, soft_cap=options.get("soft_cap", 0.0), window=window
            )
            self.assert_close(got[i : i + 1], expected)
            torch.testing.assert_close(
                lse[i], expected_lse[0].float(), rtol=1e-3, atol=1e-3, check_dtype=False
            )
        return got

    def test_decode_is_attention_over_each_sequences_blocks(self):
        for dtype in (torch.bfloat16, torch.float16):
            problem = Problem(LENGTHS, dtype)
            query = random(len(LENGTHS), Q_HEADS, DIM, dtype=dtype)
            self.check_decode(problem, query)
            self.check_decode(problem, query, soft_cap=5.0)
            self.check_decode(problem, query, window_tokens=100)

    def test_decode_takes_queries_that_lie_head_by_head_and_a_kept_workspace(self):
        problem, workspace = Problem(LENGTHS), kernels.Workspace()
        query = random(Q_HEADS, len(LENGTHS), DIM).transpose(0, 1)
        for _ in range(3):
            self.check_decode(problem, query, workspace=workspace)
        self.assertGreater(workspace.byte_count, 0)

    def test_decode_with_fixed_splits_gives_the_same_bits_in_any_batch(self):
        problem = Problem(LENGTHS)
        query = random(len(LENGTHS), Q_HEADS, DIM)
        together = self.check_decode(problem, query, split_tokens=256)
        cache = kernels.PagedKv(problem.k, problem.v)
        for i in range(len(LENGTHS)):
            tables = kernels.SequenceTables(problem.table[i : i + 1], integers([LENGTHS[i]]))
            alone = kernels.decode(query[i : i + 1], cache, tables, split_tokens=256)
            self.assertTrue(torch.equal(alone[0], together[i]))

    def test_a_captured_decode_serves_other_lengths(self):
        problem = Problem([2000, 2000])
        lengths = integers([2000, 2000])
        cache, workspace = kernels.PagedKv(problem.k, problem.v), kernels.Workspace()
        tables = kernels.SequenceTables(problem.table, lengths)
        query = random(2, Q_HEADS, DIM)
        output = torch.empty_like(query)
        kernels.decode(query, cache, tables, output=output, workspace=workspace)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernels.decode(query, cache, tables, output=output, workspace=workspace)
        for values in ([1, 1999], [700, 0]):
            lengths.copy_(integers(values))
            graph.replay()
            torch.cuda.synchronize()
            problem.lengths = values
            for i in range(2):
                self.assert_close(output[i], reference(query[i : i + 1], *problem.dense(i))[0][0])

    def test_prefill_sees_each_sequences_prefix_and_its_own_tokens_in_order(self):
        lengths, counts = [37, 577, 2011], [37, 5, 128]
        problem = Problem(lengths)
        query = random(sum(counts), Q_HEADS, DIM)
        starts = integers([0, 37, 42, 170])
        cache, lse = kernels.PagedKv(problem.k, problem.v), torch.empty(170, Q_HEADS).cuda()
        for options in (
            {},
            {"splits": 3},
            {"window_tokens": 64},
            {"workspace": kernels.Workspace()},
            # The launch ahead is the one before, long after the tables were written.
            {"tables_settled": True, "splits": 2},
        ):
            got = kernels.prefill(query, cache, problem.tables, starts, lse=lse, **options)
            for i, (first, last) in enumerate(((0, 37), (37, 42), (42, 170))):
                k, v = problem.dense(i)
                window = options.get("window_tokens", 0)
                expected, expected_lse = reference(query[first:last], k, v, window=window)
                self.assert_close(got[first:last], expected)
                self.assert_close(lse[first:last], expected_lse, 1e-3)

    def test_what_lies_on_the_cpu_is_refused_with_the_device_that_is_needed(self):
        problem, starts = Problem([37]), integers([0, 1])
        cache, query = kernels.PagedKv(problem.k, problem.v), random(1, Q_HEADS, DIM).cpu()
        for call in (
            lambda: kernels.decode(query, cache, problem.tables),
            lambda: kernels.prefill(query, cache, problem.tables, starts),
            lambda: kernels.kv_write(query, query, cache, starts),
            lambda: kernels.PagedKv(problem.k.cpu(), problem.v.cpu()),
        ):
            with self.assertRaisesRegex(kvtier.InvalidArgumentError, "on cpu, not .* Hopper"):
                call()

    def test_decode_shared_is_decode_over_prefix_and_own_tokens(self):
        # Four sequences; the first three share 160 tokens, the last has no prefix.
        own = Problem([5, 64, 0, 33])
        prefix = integers([own.pool.shape[0] - 1 - i for i in range(10)])
        table = torch.stack([prefix, prefix])
        prefixes = kernels.SequenceTables(table, integers([160, 0]))
        query = random(4, Q_HEADS, DIM)
        cache = kernels.PagedKv(own.k, own.v)
        members = integers([0, 3, 4])
        got = kernels.decode_shared(query, cache, own.tables, prefixes, members)
        rows = prefix.long()
        for i in range(4):
            parts = [own.dense(i)]
            if i < 3:
                shared = [x[rows].reshape(-1, KV_HEADS, DIM).double() for x in (own.k, own.v)]
                parts.insert(0, shared)
            k, v = (torch.cat(values) for values in zip(*parts))
            self.assert_close(got[i], reference(query[i : i + 1], k, v)[0][0])

    def test_mla_decode_is_attention_over_the_latent_rows(self):
        lengths, heads, page = [1, 700, 0], 40, 64
        latent = random(40, page, 576)
        table = torch.randperm(33, generator=torch.Generator().manual_seed(3)).int().reshape(3, 11)
        tables = kernels.SequenceTables(table.cuda(), integers(lengths))
        query, lse = random(3, heads, 576, seed=4), torch.empty(3, heads).cuda()
        got = kernels.mla_decode(query, latent, tables, 0.05, lse=lse)
        for i, length in enumerate(lengths):
            rows = latent[table[i].long().cuda()].reshape(-1, 576)[:length].double()
            scores = query[i].double() @ rows.T * 0.05
            self.assert_close(got[i], scores.softmax(-1) @ rows[:, :512])
            torch.testing.assert_close(lse[i].double(), scores.logsumexp(-1), rtol=1e-3, atol=1e-3)

    def test_mla_decode_scales_the_rows_of_a_float8_cache(self):
        heads, page = 16, 64
        latent = (16 * random(9, page, 576).float()).to(torch.float8_e4m3fn)
        tables = kernels.SequenceTables(integers([[4, 0, 7]]), integers([170]))
        query = random(1, heads, 576, seed=4)
        for scales in (torch.tensor(0.05), torch.rand(9, page) * 0.05 + 0.03):
            scales = scales.cuda()
            got = kernels.mla_decode(query, latent, tables, 0.05, latent_scales=scales)
            by_row = scales.double()[..., None] if scales.dim() == 2 else scales.double()
            rows = (latent.double() * by_row)[[4, 0, 7]].reshape(-1, 576)[:170]
            weights = (query[0].double() @ rows.T * 0.05).softmax(-1)
            self.assert_close(got[0], weights @ rows[:, :512])

    def test_kv_write_turns_rounds_and_puts_each_token_into_its_slot(self):
        tokens = 50
        key, value = random(tokens, KV_HEADS, DIM, seed=2), random(tokens, KV_HEADS, DIM, seed=3)
        query = random(tokens, Q_HEADS, DIM, seed=4)
        pool = torch.full((9, 2, PAGE, KV_HEADS, DIM), math.nan, dtype=torch.bfloat16).cuda()
        slots = torch.randperm(9 * PAGE, generator=torch.Generator().manual_seed(5))[:tokens].cuda()
        slots[7] = -1
        positions = torch.arange(100, 100 + tokens, dtype=torch.int32).cuda()
        frequency = 10000.0 ** (-torch.arange(0, DIM, 2, device="cuda") / DIM)
        angles = torch.arange(200, device="cuda")[:, None] * frequency
        cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).contiguous()
        rope = kernels.Rope(kernels.RopeStyle.NEOX, positions, cos_sin)
        turned = torch.empty_like(query)
        cache = kernels.PagedKv(pool[:, 0], pool[:, 1])
        kernels.kv_write(key, value, cache, slots, rope=rope, query=query, query_output=turned)
        expected_key, expected_query = (neox(x, angles[100:150]) for x in (key, query))
        written = slots >= 0
        blocks, rows = slots[written] // PAGE, slots[written] % PAGE
        self.assertTrue(torch.equal(pool[blocks, 1, rows], value[written]))
        self.assert_close(pool[blocks, 0, rows], expected_key[written])
        self.assert_close(turned, expected_query)
        self.assertEqual(int((~pool.isnan()).sum()), 49 * 2 * KV_HEADS * DIM)

    def test_an_fp8_cache_with_a_scale_for_each_token_and_head(self):
        tokens = 577
        blocks = -(-tokens // PAGE)
        shape = (blocks, PAGE, KV_HEADS)
        pool = torch.zeros(*shape, 2 * DIM, dtype=torch.uint8).cuda().view(torch.float8_e4m3fn)
        scales = [torch.ones(shape).cuda() for _ in range(2)]
        cache = kernels.PagedKv(pool[..., :DIM], pool[..., DIM:], *scales)
        key, value = random(tokens, KV_HEADS, DIM, seed=2), random(tokens, KV_HEADS, DIM, seed=3)
        slots = torch.arange(tokens).cuda()
        kernels.kv_write(key * 3, value, cache, slots, dynamic_scales=True)
        k, v = (
            (x.float() * scale[..., None]).reshape(-1, KV_HEADS, DIM)[:tokens].double()
            for x, scale in zip((cache.key, cache.value), scales)
        )
        self.assert_close(k, key.double() * 3, 0.05)
        query = random(1, Q_HEADS, DIM)
        table = torch.arange(blocks, dtype=torch.int32).cuda()[None]
        tables = kernels.SequenceTables(table, integers([tokens]))
        self.assert_close(kernels.decode(query, cache, tables), reference(query, k, v)[0])

    def test_the_documents_attention_writes_and_reads_the_pool(self):
        text = (SOURCE / "docs" / "PYTHON.md").read_text()
        names = {}
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        exec(next(one for one in blocks if "def attention(" in one), names)
        problem, workspace = Problem([64, 64]), kernels.Workspace()
        layer = kvtier.KvView(problem.k, problem.v)
        written = 0
        for count in (40, 1):
            k, v = (random(2, count, KV_HEADS, DIM, seed=count + i) for i in range(2))
            query = random(2, count, Q_HEADS, DIM)
            at = torch.arange(written, written + count).cuda()
            written += count
            problem.lengths = [written, written]
            tables = kernels.SequenceTables(problem.table, integers(problem.lengths))
            slots = problem.table[:, at // PAGE].long() * PAGE + at % PAGE
            flat = (x.flatten(0, 1) for x in (query, k, v))
            starts = integers([0, count, 2 * count])
            got = names["attention"](layer, *flat, slots.flatten(), tables, starts, workspace)
            for i in range(2):
                dense = problem.dense(i)
                self.assertTrue(torch.equal(dense[0][-count:], k[i].double()))
                expected = reference(query[i], *dense)[0]
                self.assert_close(got[i * count : (i + 1) * count], expected)

    def test_parts_merge_into_the_whole(self):
        query = random(3, Q_HEADS, DIM)
        k, v = (
            random(90, KV_HEADS, DIM, seed=5).double(),
            random(90, KV_HEADS, DIM, seed=6).double(),
        )
        first = reference(query, k[:30], v[:30], first_position=90)
        second = reference(query, k[30:], v[30:], first_position=90)
        whole, whole_lse = reference(query, k, v, first_position=90)
        partials = torch.stack([first[0], second[0]]).float()
        partial_lse = torch.stack([first[1], second[1]]).float().contiguous()
        lse = torch.empty(3, Q_HEADS).cuda()
        got = kernels.merge_lse(partials, partial_lse, torch.empty_like(query), lse=lse)
        self.assert_close(got, whole)
        self.assert_close(lse, whole_lse, 1e-4)

    def test_another_stream_is_waited_for_like_any(self):
        problem, query = Problem([2011]), random(1, Q_HEADS, DIM)
        cache, stream = kernels.PagedKv(problem.k, problem.v), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        got = kernels.decode(query, cache, problem.tables, stream=stream)
        stream.synchronize()
        self.assert_close(got, reference(query, *problem.dense(0))[0])

    def test_what_is_not_built_is_unsupported(self):
        cache = kernels.PagedKv(*(random(4, 16, 8, 96) for _ in "kv"))
        tables = kernels.SequenceTables(integers([[0]]), integers([5]))
        with self.assertRaises(kvtier.UnsupportedError):
            kernels.decode(random(1, 8, 96), cache, tables)


def neox(x, angles):
    """The rotary embedding of [tokens, heads, dim] at [tokens, dim / 2] angles."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


if __name__ == "__main__":
    unittest.main()
