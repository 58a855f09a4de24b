# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/PYTHON.md, docs/CPP.md and of the README files run as printed, and do what they
say; README itself stays short, and the engines' pages have one form."""

import contextlib
import functools
import io
import os
import pathlib
import re
import subprocess
import sys
import unittest
from unittest import mock

import numpy as np

import kvtier
from harness.daemon_test_case import BLOCK_BYTES, BLOCK_TOKENS, RECORD, DaemonTestCase, prompt
from harness.model_cache import model_cache
from harness.paths import SOURCE, daemon_program


def first_python(path):
    """The first block of Python in a file."""
    return re.search(r"```python\n(.*?)```", path.read_text(), re.DOTALL).group(1)


@contextlib.contextmanager
def before_line(code, number, call):
    """Calls `call` once, before the line of that number in `code` runs."""
    pending = [call]

    def trace(frame, event, _):
        if frame.f_code is not code:
            return None
        if event == "line" and frame.f_lineno == number and pending:
            pending.pop()()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def sentences_of(text):
    """The sentences of a page's prose: without code, tables, headings and the targets of links."""
    prose = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    prose = re.sub(r"^(#|\||!).*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    for paragraph in re.split(r"\n\s*\n", prose):
        yield from re.split(r"(?<=[.:;!?])\s+", " ".join(paragraph.split()))


def cells_of(text):
    """The cells of a page's tables, without the targets of links."""
    for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        yield from re.sub(r"\]\([^)]*\)", "]", row).split("|")


class ReadmeTest(unittest.TestCase):
    text = (SOURCE / "README.md").read_text()

    def test_it_is_short_and_its_sentences_and_cells_are(self):
        self.assertLessEqual(len(self.text.splitlines()), 120)
        self.assertEqual([s for s in sentences_of(self.text) if len(s.split()) > 30], [])
        self.assertEqual([cell for cell in cells_of(self.text) if len(cell.split()) > 10], [])

    def test_its_first_screen_has_a_figure_an_install_line_a_server_and_a_picture(self):
        first_screen = "\n".join(self.text.splitlines()[:40])
        for line in ("pip install", "vllm serve MODEL", "kvtierd --dev", "computed again"):
            self.assertIn(line, first_screen)
        self.assertRegex(first_screen, r"VRAM +<--> +host memory +<--> +NVMe", "no picture")

    def test_its_links_lead_to_files(self):
        targets = re.findall(r"\]\(([^)#:]+)[^)]*\)", self.text)
        self.assertEqual([one for one in targets if not (SOURCE / one).exists()], [])


class EnginePagesTest(unittest.TestCase):
    """Pages differ in what they say, and not in where they say it."""

    chapters = (
        "Three",
        "In the log",
        "Expected results",
        "Sizes",
        "Options",
        "Meaning of each miss",
        "Tested with",
    )

    def test_all_have_the_same_chapters_in_the_same_order(self):
        for engine in ("VLLM", "SGLANG", "LMCACHE", "TRANSFORMERS"):
            with self.subTest(engine):
                page = (SOURCE / "docs" / "engines" / f"{engine}.md").read_text()
                titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
                found = [
                    one for title in titles for one in self.chapters if title.startswith(one)
                ]
                self.assertEqual(found, list(self.chapters))


class DocumentationTest(DaemonTestCase):
    # Llama's blocks are 2 MiB.
    more_settings = ("pool.bytes=96MiB", "host.bytes=64MiB", "cache.slab_bytes=16MiB")

    def setUp(self):
        super().setUp()
        contexts = contextlib.ExitStack()
        self.addCleanup(contexts.close)
        contexts.enter_context(mock.patch.dict(os.environ, KVTIER_SOCKET=self.daemon.socket))
        contexts.enter_context(model_cache("meta-llama/Llama-3.1-8B"))
        text = (SOURCE / "docs" / "PYTHON.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.example, self.compute, self.decode, self.plan, *others = blocks
        self.groups, self.region, self.layers, *_ = others

    def test_the_ten_lines_compute_once_what_a_second_run_finds(self):
        computed = []
        names = {
            "prompt": prompt(blocks=3, extra_tokens=2),
            "compute_kv": lambda pool, slots, tokens: computed.append((len(slots), len(tokens))),
        }
        for _ in range(2):
            exec(self.example, names)
        self.assertEqual(computed, [(50, 50), (1, 1)])

    def test_generated_tokens_are_found_by_the_next_prompt_that_has_them(self):
        slots = []
        names = {"decode": lambda pool, slot, table, token: slots.append(slot) or token + 1}
        exec(self.decode, names)
        pool = self.attach()
        with pool.open_sequence(prompt(blocks=2)) as sequence:
            sequence.mark_computed(len(sequence))
            names["generate"](pool, sequence, 7, 20)
            self.assertEqual([len(one) for one in slots], [1] * 20)
            self.assertEqual(len(sequence), 2 * BLOCK_TOKENS + 20)
        longer = [*prompt(blocks=2), *range(7, 27), 99]
        with self.attach().open_sequence(longer) as again:
            self.assertEqual(again.cached_tokens, 2 * BLOCK_TOKENS + 20)

    def test_the_ten_lines_compute_everything_when_the_daemon_dies_under_them(self):
        computed = []
        names = {
            "prompt": prompt(blocks=3, extra_tokens=2),
            "compute_kv": lambda pool, slots, tokens: computed.append((len(slots), len(tokens))),
        }
        attach = kvtier.Connection.attach

        def attach_and_die(connection, model):
            pool = attach(connection, model)
            self.daemon.kill()
            return pool

        with mock.patch.object(kvtier.Connection, "attach", attach_and_die):
            exec(self.example, names)
        self.assertEqual(computed, [(0, 50)])

    def test_the_lines_of_hit_plans_leave_out_what_no_tier_has(self):
        names = {"kvtier": kvtier, "pool": self.attach(), "prompt": prompt(blocks=3, extra_tokens=2)}
        found = []
        for _ in range(2):
            exec(self.plan, names)
            with names["sequence"] as sequence:
                found.append(sequence.cached_tokens)
                sequence.mark_computed(len(sequence))
        self.assertEqual(found, [0, 3 * BLOCK_TOKENS])

    def test_the_groups_lines_acquire_of_both_groups(self):
        hashes = [bytes([i]) * 32 for i in range(4)]
        names = {"kvtier": kvtier, "connection": self.connect(), "commit": "", "hashes": hashes}
        exec(self.groups, names)
        self.assertEqual([len(one.new_blocks) for one in names["results"]], [4, 4])

    def test_the_regions_lines_store_and_load(self):
        names = {
            "connection": self.connect(),
            "hashes": [bytes([i]) * 32 for i in range(4)],
            "record": RECORD,
            "row_bytes": BLOCK_BYTES,
            "rows": 16,
        }
        exec(self.region, names)
        self.assertEqual(names["there"].tolist(), [True, True, False, False])
        names["region"] = names["connection"].open_region(
            RECORD, fd=names["fd"], bytes=16 * BLOCK_BYTES, blocks=16
        )
        exec(self.layers, names)
        self.assertEqual(names["layer"], RECORD.layers - 1)
        os.close(names["fd"])

    def test_compute_kv_writes_the_slots_it_is_given(self):
        names = {}
        exec(self.compute.replace("...", "1"), names)
        connection = self.connect()
        record = kvtier.ModelRecord("llama-3.1-8b", 32, 8, 128, 128)
        pool = connection.attach(connection.register_model(record))
        with pool.acquire(new_blocks=2) as got:
            first, second = got.block_table()
            pool.memory().block_bytes()[[first, second]] = 0
            slots = np.array([first * 16 + 15, second * 16], np.int64)
            names["compute_kv"](pool, slots, [1, 2])
            for layer in (0, 31):
                k = pool.layer(layer).k
                self.assertEqual(int(k[first].sum()), 8 * 128)
                self.assertTrue((k[first, 15] == 1).all() and (k[second, 0] == 1).all())
        absent = kvtier.connect("/nonexistent/kvtier.sock", wait_for_daemon=True)
        with absent, absent.attach(absent.register_model(record)) as pool:
            names["compute_kv"](pool, np.empty(0, np.int64), [1, 2])

    def run_example(self, path, **names):
        """The first Python of a file, with this test's daemon at the place where it looks."""
        example = first_python(path)
        connect = functools.partial(kvtier.connect, self.daemon.socket)
        out = io.StringIO()
        with mock.patch.object(kvtier, "connect", connect):
            with contextlib.redirect_stdout(out):
                exec(example, names)
        return out.getvalue()

    def test_the_lines_of_the_readme_compute_once_what_a_second_run_finds(self):
        computed = []
        for _ in range(2):
            self.run_example(
                SOURCE / "README.md",
                prompt=prompt(blocks=3, extra_tokens=2),
                compute_kv=lambda pool, slots, tokens: computed.append((len(slots), len(tokens))),
            )
        # The partial block at the end is not finished there.
        self.assertEqual(computed, [(50, 50), (2, 2)])

    def test_the_lines_of_the_readme_survive_a_daemon_that_dies_before_any_of_them(self):
        example = first_python(SOURCE / "README.md")
        lines = [i + 1 for i, line in enumerate(example.splitlines()) if line.strip()]
        tokens = prompt(blocks=3, extra_tokens=2)
        code = compile(example, "ten lines", "exec")
        for dies_before in lines[1:]:
            with self.subTest(line=example.splitlines()[dies_before - 1].strip()):
                computed = []

                def compute_kv(pool, slots, rest, computed=computed):
                    computed.append(len(rest))

                self.daemon.kill()
                self.daemon.start()
                with before_line(code, dies_before, self.daemon.kill):
                    exec(code, {"prompt": tokens, "compute_kv": compute_kv})
                # A prefix that was found before the death counts only if it is there until the end.
                self.assertEqual(computed, [50])

    def test_the_program_of_the_cpp_page_finds_what_its_first_run_computed(self):
        program = pathlib.Path(daemon_program()).parent / "cpp_page_example"
        if not program.exists():
            self.skipTest("not built")
        told = [
            subprocess.run([program], capture_output=True, text=True, check=False)
            for _ in range(2)
        ]
        self.assertEqual(
            [(run.stdout, run.stderr) for run in told],
            [("100 tokens, 0 of them cached\n", ""), ("100 tokens, 99 of them cached\n", "")],
        )

    def test_the_lines_of_the_packages_readme_tell_what_is_cached(self):
        tokens = prompt(blocks=3, extra_tokens=2)
        readme = SOURCE / "client" / "python" / "README.md"
        told = self.run_example(readme, prompt_tokens=tokens)
        self.assertEqual(told, "0 of 50 tokens need not be computed\n")
        self.daemon.kill()
        self.assertEqual(self.run_example(readme, prompt_tokens=tokens), told)


if __name__ == "__main__":
    unittest.main()
