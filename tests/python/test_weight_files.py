# SPDX-License-Identifier: Apache-2.0
"""Which weights a directory has, by the bytes of its files."""

import json
import os
import pathlib
import random
import shutil
import tempfile
import unittest
import unittest.mock

from kvtier import _weight_files
from kvtier._weight_files import weights_digest

TENSORS = 40
TENSOR_BYTES = 64 << 10


def write_safetensors(path, tensors):
    """tensors: bytes by name."""
    header, offset = {}, 0
    for name, content in tensors.items():
        places = [offset, offset + len(content)]
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": places}
        offset += len(content)
    text = json.dumps(header).encode()
    content = b"".join(tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


class WeightsDigestTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.model = self.directory / "model"
        self.model.mkdir()
        self.weights = self.model / "model.safetensors"
        generator = random.Random(1)
        self.tensors = {f"t{i}": generator.randbytes(TENSOR_BYTES) for i in range(TENSORS)}
        write_safetensors(self.weights, self.tensors)
        (self.model / "config.json").write_text("{}")

    def digest(self, **options):
        return weights_digest(str(self.model), **options)

    def test_copies_at_another_path_with_other_times_are_the_same(self):
        copy = self.directory / "copy"
        shutil.copytree(self.model, copy, copy_function=shutil.copyfile)
        os.utime(copy / "model.safetensors", (1, 1))
        self.assertEqual(weights_digest(str(copy)), self.digest())

    def test_each_tensor_counts(self):
        digests = {self.digest()}
        for name in self.tensors:
            changed = {**self.tensors, name: bytes(TENSOR_BYTES)}
            write_safetensors(self.weights, changed)
            digests.add(self.digest())
        self.assertEqual(len(digests), TENSORS + 1)

    def test_one_byte_counts_where_all_bytes_are_read(self):
        before = self.digest(), self.digest(whole=True)
        content = bytearray(self.weights.read_bytes())
        content[-1] ^= 1
        self.weights.write_bytes(content)
        self.assertEqual(self.digest(), before[0])
        self.assertNotEqual(self.digest(whole=True), before[1])

    def test_names_of_tensors_count(self):
        before = self.digest()
        write_safetensors(self.weights, dict(zip(reversed(self.tensors), self.tensors.values())))
        self.assertNotEqual(self.digest(), before)

    def test_small_files_count_whole(self):
        for name in ("config.json", "modeling_own.py"):  # code that engines run where it is trusted
            before = self.digest()
            (self.model / name).write_text("[]")
            self.assertNotEqual(self.digest(), before)

    def test_files_that_say_nothing_of_the_model_do_not_count(self):
        before = self.digest()
        (self.model / "README.md").write_text("words")
        (self.model / "original").mkdir()
        self.assertEqual(self.digest(), before)

    def test_large_files_of_other_kinds_are_sampled_all_over(self):
        self.weights.unlink()
        weights = self.model / "pytorch_model.bin"
        digests = set()
        for zeros in range(8):
            content = bytearray(b"\1" * (8 << 20))
            content[zeros << 20 : (zeros + 1) << 20] = bytes(1 << 20)
            weights.write_bytes(content)
            digests.add(self.digest())
        self.assertEqual(len(digests), 8)

    def test_a_broken_header_is_no_reason_to_fail(self):
        size = 2 << 20
        headers = [
            b"",
            (1 << 62).to_bytes(8, "little"),
            (4).to_bytes(8, "little") + b"[1]]",
            (9).to_bytes(8, "little") + b'{"t": 1 }',
        ]
        outside = json.dumps({"t": {"data_offsets": [0, size]}}).encode()
        headers.append(len(outside).to_bytes(8, "little") + outside)
        for header in headers:
            self.weights.write_bytes(header.ljust(size, b"\1"))
            self.assertRegex(self.digest(), "^[0-9a-f]{32}$")

    def test_a_file_is_read_again_only_when_it_looks_different(self):
        with unittest.mock.patch.object(
            _weight_files, "_file_digest", side_effect=_weight_files._file_digest
        ) as read:
            self.digest()
            files = read.call_count
            self.digest()
            self.assertEqual(read.call_count, files)
            os.utime(self.weights, (1, 1))
            self.digest()
            self.assertEqual(read.call_count, files + 1)

    def test_a_file_that_is_written_in_place_with_its_old_times_is_read_again(self):
        before = self.digest()
        status = self.weights.stat()
        write_safetensors(self.weights, {name: bytes(TENSOR_BYTES) for name in self.tensors})
        os.utime(self.weights, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.assertEqual(self.weights.stat().st_size, status.st_size)
        self.assertNotEqual(self.digest(), before)

    def test_where_there_are_no_weights_there_is_no_digest(self):
        self.weights.unlink()
        self.assertIsNone(self.digest())
        for path in ("", None, str(self.directory / "nothing"), "org/model"):
            self.assertIsNone(weights_digest(path))


if __name__ == "__main__":
    unittest.main()
