# SPDX-License-Identifier: Apache-2.0
"""Events of a real kvtierd for routers, over real ZMQ sockets, read as routers read them."""

import functools
import pathlib
import tempfile
import unittest

import msgspec
import numpy as np
import zmq
from event_structs import SglangBatch, decode_dynamo, decode_llmd, vllm_events
from harness.private_daemon import PrivateDaemon

import kvtier

BLOCKS, BLOCK_TOKENS = 4, 16
TOPIC = b"kv@pod-1@some/model"
TIMEOUT_MS = 60_000
RECORD = kvtier.ModelRecord(
    name="some/model", layers=2, kv_heads=2, k_head_dim=32, v_head_dim=32, block_tokens=BLOCK_TOKENS
)


def struct_blocks_on_device(decoder, payload):
    """The hashes of the blocks that are in the pool now, by an engine's own structs."""
    return [
        block_hash
        for event in decoder.decode(payload).events
        if type(event).__name__ == "BlockStored" and event.medium == "GPU"
        for block_hash in event.block_hashes
    ]


def llmd_blocks_on_device(payload):
    return [
        block_hash
        for event in decode_llmd(payload)
        if event["tag"] == "BlockStored" and event["medium"] == "GPU"
        for block_hash in event["hashes"]
    ]


def dynamo_blocks_on_device(payload):
    return [
        block_hash
        for event in decode_dynamo(payload)
        if event["type"] == "BlockStored" and event["tier"] == "device"
        for block_hash in event["block_hashes"]
    ]


class EventsTest(unittest.TestCase):
    def start(self, *settings):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-events-")
        self.addCleanup(directory.cleanup)
        path = pathlib.Path(directory.name)
        self.endpoint, self.replay_endpoint = f"ipc://{path}/events", f"ipc://{path}/replay"
        self.daemon = PrivateDaemon(
            directory.name,
            [
                "pool.bytes=2MiB",
                "pool.device=host",
                "host.bytes=4MiB",
                "cache.slab_bytes=64KiB",
                "disk.bytes=0B",
                "events.pod=pod-1",
                f"events.endpoint={self.endpoint}",
                f"events.replay_endpoint={self.replay_endpoint}",
                *settings,
            ],
        )
        self.addCleanup(self.daemon.kill)
        self.daemon.start()
        self.context = zmq.Context()
        self.addCleanup(self.context.term)

    def socket(self, kind):
        socket = self.context.socket(kind)
        self.addCleanup(socket.close, linger=0)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        return socket

    def subscribe(self, topic=b"kv@"):
        socket = self.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, topic)
        socket.connect(self.endpoint)
        return socket

    def compute_prompt(self, seed=0):
        with kvtier.connect(self.daemon.socket) as connection:
            pool = connection.attach(connection.register_model(RECORD))
            tokens = np.arange(BLOCKS * BLOCK_TOKENS, dtype=np.uint32) + 1000 * seed
            with pool.open_sequence(tokens) as sequence:
                sequence.wait()
                sequence.mark_computed(len(tokens))
                sequence.finish()

    def payloads(self, socket, seen):
        """Receives until `seen(payload)` says that there is enough; checks frames and numbers."""
        payloads, last = [], None
        while True:
            topic, number, payload = socket.recv_multipart()
            self.assertEqual(topic, TOPIC)
            number = int.from_bytes(number, "big")
            if last is not None:
                self.assertEqual(number, last + 1)
            last = number
            payloads.append(payload)
            if seen(payload):
                return payloads, last

    @staticmethod
    def counts_pool_blocks(hashes_of):
        """A `seen` that is content when all blocks of the prompt are known to be in the pool."""
        known = set()

        def seen(payload):
            known.update(hashes_of(payload))
            return len(known) >= BLOCKS

        return seen

    def test_vllms_own_structs_read_maps(self):
        decoder = msgspec.msgpack.Decoder(type=vllm_events().KVEventBatch)
        self.start()

        socket = self.subscribe()
        self.compute_prompt()
        stored = functools.partial(struct_blocks_on_device, decoder)
        payloads, _ = self.payloads(socket, self.counts_pool_blocks(stored))
        first = decoder.decode(payloads[0])
        self.assertEqual(type(first.events[0]).__name__, "AllBlocksCleared")
        self.assertEqual(first.data_parallel_rank, 0)
        blocks = [event for payload in payloads for event in decoder.decode(payload).events]
        for event in blocks:
            if type(event).__name__ == "BlockStored":
                self.assertEqual((event.block_size, event.token_ids), (BLOCK_TOKENS, []))
        self.check_replay(decoder)

    def stored_events(self, socket, decoder, blocks, medium="GPU"):
        """Reads the medium's events until so many blocks with ids were told: by hash, the ids and
        the hash before it."""
        told = {}

        def seen(payload):
            for event in decoder.decode(payload).events:
                if type(event).__name__ != "BlockStored" or event.medium != medium:
                    continue
                if not event.token_ids:
                    continue
                self.assertEqual(
                    len(event.token_ids), event.block_size * len(event.block_hashes)
                )
                parent = event.parent_block_hash
                for i, block_hash in enumerate(event.block_hashes):
                    ids = event.token_ids[i * event.block_size : (i + 1) * event.block_size]
                    told[block_hash] = (ids, parent)
                    parent = block_hash
            return len(told) >= blocks

        self.payloads(socket, seen)
        return told

    def check_recipe(self, told, blocks=BLOCKS):
        """The ids are those that the hashes were made of, by vLLM's recipe."""
        chain, parent = [], None
        while len(chain) < blocks * BLOCK_TOKENS:
            block_hash, ids = next((one, ids) for one, (ids, of) in told.items() if of == parent)
            chain += ids
            parent = block_hash
            hashes = kvtier.hash_blocks(chain, BLOCK_TOKENS)
            self.assertEqual(int.from_bytes(hashes[-1][-8:], "big"), block_hash)
        return chain

    def test_token_ids_hash_to_the_hashes_by_vllms_recipe(self):
        decoder = msgspec.msgpack.Decoder(type=vllm_events().KVEventBatch)
        self.start('events.token_ids=["default"]')

        socket = self.subscribe()
        self.compute_prompt(seed=3)
        told = self.stored_events(socket, decoder, BLOCKS)
        chain = self.check_recipe(told)
        self.assertEqual(chain, [3000 + i for i in range(BLOCKS * BLOCK_TOKENS)])
        # A router that comes late learns the same.
        late = self.stored_events(self.subscribe(), decoder, BLOCKS)
        self.assertEqual(late, told)

    def test_llmds_and_dynamos_decoders_read_token_ids(self):
        self.start("events.format=llm-d", 'events.token_ids=["default"]')

        socket = self.subscribe()
        self.compute_prompt()
        payloads, _ = self.payloads(socket, self.counts_pool_blocks(llmd_blocks_on_device))
        ids = []
        for payload in payloads:
            for llmd, dynamo in zip(decode_llmd(payload), decode_dynamo(payload), strict=True):
                if llmd["tag"] == "BlockStored" and llmd["medium"] == "GPU":
                    self.assertEqual(llmd["tokens"], dynamo["token_ids"])
                    ids += llmd["tokens"]
        self.assertEqual(ids, list(range(BLOCKS * BLOCK_TOKENS)))

    def test_a_daemon_that_is_started_again_tells_the_ids_of_what_is_on_disk(self):
        decoder = msgspec.msgpack.Decoder(type=vllm_events().KVEventBatch)
        self.start(
            "disk.bytes=4MiB",
            "disk.free_floor_bytes=0B",
            'events.token_ids=["default"]',
        )
        self.compute_prompt()
        self.daemon.stop()
        self.daemon.start()
        socket = self.subscribe()
        # Its model is told of once an engine has named it.
        with kvtier.connect(self.daemon.socket) as connection:
            connection.register_model(RECORD)
            told = self.stored_events(socket, decoder, BLOCKS, "STORAGE")
            self.check_recipe(told)

    def test_an_erasure_leaves_no_ids_to_be_told(self):
        decoder = msgspec.msgpack.Decoder(type=vllm_events().KVEventBatch)
        self.start('events.token_ids=["default"]')
        socket = self.subscribe()
        self.compute_prompt()
        self.stored_events(socket, decoder, BLOCKS)
        request = {"op": "erase", "tenant": "default", "without_proof": True}
        kvtier.admin(request, self.daemon.admin_socket)

        asker = self.socket(zmq.DEALER)
        asker.connect(self.replay_endpoint)
        asker.send_multipart((b"", (0).to_bytes(8, "big")))
        while True:
            _, _, number, payload = asker.recv_multipart()
            if number == (-1).to_bytes(8, "big", signed=True):
                break
            for event in decoder.decode(payload).events:
                self.assertFalse(getattr(event, "token_ids", []))

    def check_replay(self, decoder):
        """Does the same as vLLM's subscribers after a gap, with the same answer."""
        asker = self.socket(zmq.DEALER)
        asker.connect(self.replay_endpoint)
        for first in (0, 2**63):
            asker.send_multipart((b"", first.to_bytes(8, "big")))
            answers = 0
            while True:
                delimiter, topic, number, payload = asker.recv_multipart()
                self.assertEqual(delimiter, b"")
                if number == (-1).to_bytes(8, "big", signed=True):
                    break
                self.assertEqual(topic, TOPIC)
                decoder.decode(payload)
                answers += 1
            self.assertGreater(answers, 0)

    def test_sglangs_structs_read_maps(self):
        decoder = msgspec.msgpack.Decoder(type=SglangBatch)
        self.start("events.format=sglang")

        socket = self.subscribe()
        self.compute_prompt()
        stored = functools.partial(struct_blocks_on_device, decoder)
        payloads, _ = self.payloads(socket, self.counts_pool_blocks(stored))
        self.assertTrue(all(decode_dynamo(payload) is not None for payload in payloads))

    def test_llmds_and_dynamos_decoders_read_arrays(self):
        self.start("events.format=llm-d")

        socket = self.subscribe(TOPIC)
        self.compute_prompt()
        payloads, _ = self.payloads(socket, self.counts_pool_blocks(llmd_blocks_on_device))
        for payload in payloads:
            for llmd, dynamo in zip(decode_llmd(payload), decode_dynamo(payload), strict=True):
                self.assertEqual(llmd["tag"], dynamo["type"])
                if "hashes" in llmd:
                    self.assertEqual(llmd["hashes"], dynamo["block_hashes"])

    def test_llmds_decoder_reads_hashes_as_bytes(self):
        self.start("events.format=llm-d-bytes")

        socket = self.subscribe()
        self.compute_prompt()
        self.payloads(socket, self.counts_pool_blocks(llmd_blocks_on_device))

    def test_a_router_follows_a_daemon_that_is_killed_and_started_again(self):
        self.start()
        socket = self.subscribe()
        self.compute_prompt()
        in_pool = self.counts_pool_blocks(dynamo_blocks_on_device)
        _, before = self.payloads(socket, in_pool)
        self.daemon.kill()
        self.daemon.start()
        self.compute_prompt(seed=1)
        # Its numbers are higher, after all that the router believed is cleared.
        known, cleared, last = set(), False, None
        while len(known) < BLOCKS:
            _, number, payload = socket.recv_multipart()
            number = int.from_bytes(number, "big")
            self.assertGreater(number, before if last is None else last)
            last = number
            if not cleared:
                cleared = decode_dynamo(payload)[0]["type"] == "AllBlocksCleared"
                continue
            known.update(dynamo_blocks_on_device(payload))
        self.assertTrue(cleared)


if __name__ == "__main__":
    unittest.main()
