// SPDX-License-Identifier: Apache-2.0
#include "daemon/events/event_batch.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/unit/daemon/event_reader.h"

namespace kvtier {
namespace {

namespace json = boost::json;

BlockHash HashOf(uint8_t first, uint8_t last) {
  BlockHash hash;
  hash.bytes.front() = first;
  hash.bytes.back() = last;
  return hash;
}

StoredBlock Stored(const BlockHash& hash, Tier tier, std::optional<BlockHash> parent = {}) {
  return {.key = {NamespaceId(0), hash}, .parent = parent, .tokens = 16, .tier = tier};
}

json::value Taken(EventBatch* batch, EventFormat format = EventFormat::kVllm) {
  return ReadMsgpack(batch->Take(format, /*now_ms=*/1500));
}

TEST(EventBatchTest, IsTheArrayOfTimeEventsAndRankThatVllmSends) {
  EventBatch batch;
  batch.AddCleared();
  EXPECT_EQ(Taken(&batch), json::parse(R"([1.5, [{"type": "AllBlocksCleared"}], 0])"));
  EXPECT_TRUE(batch.empty());
}

TEST(EventBatchTest, HasAPayloadWithoutEvents) {
  EventBatch batch;
  EXPECT_EQ(Taken(&batch), json::parse("[1.5, [], 0]"));
}

TEST(EventBatchTest, TellsTheEventsOfAnotherAfterItsOwn) {
  EventBatch batch, other;
  batch.AddCleared();
  other.AddStored(Stored(HashOf(1, 2), Tier::kHost), std::nullopt);
  batch.Append(&other);
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(batch.size(), 2u);
  EXPECT_EQ(Taken(&batch, EventFormat::kLlmd).at(1), json::parse(R"([
    ["AllBlocksCleared"], ["BlockStored", [2], null, [], 16, null, "CPU"]])"));
}

TEST(EventBatchTest, WritesTheFieldsOfVllmsMaps) {
  EventBatch batch;
  batch.AddStored(Stored(HashOf(1, 2), Tier::kPool, HashOf(0, 1)), std::nullopt);
  batch.AddRemoved(HashOf(1, 2), Tier::kDisk, std::nullopt);
  EXPECT_EQ(Taken(&batch).at(1), json::parse(R"([
    {"type": "BlockStored", "block_hashes": [2], "parent_block_hash": 1, "token_ids": [],
     "block_size": 16, "lora_id": null, "medium": "GPU", "lora_name": null},
    {"type": "BlockRemoved", "block_hashes": [2], "medium": "STORAGE"}])"));
}

TEST(EventBatchTest, WritesTaggedArraysForRoutersThatReadNoMaps) {
  EventBatch batch;
  batch.AddStored(Stored(HashOf(1, 2), Tier::kHost), std::nullopt);
  batch.AddRemoved(HashOf(1, 2), Tier::kHost, std::nullopt);
  batch.AddCleared();
  EXPECT_EQ(Taken(&batch, EventFormat::kLlmd).at(1), json::parse(R"([
    ["BlockStored", [2], null, [], 16, null, "CPU"],
    ["BlockRemoved", [2], "CPU"],
    ["AllBlocksCleared"]])"));
}

TEST(EventBatchTest, WritesTheTokenIdsOfAllBlocksOfAnEventOneAfterTheOther) {
  const std::array<uint32_t, 2> first{7, 70'000}, second{0, UINT32_MAX};
  StoredBlock head = Stored(HashOf(0, 1), Tier::kPool);
  StoredBlock tail = Stored(HashOf(0, 2), Tier::kPool, HashOf(0, 1));
  head.tokens = tail.tokens = 2;
  head.token_ids = first;
  tail.token_ids = second;
  EventBatch batch;
  batch.AddStored(head, std::nullopt);
  batch.AddStored(tail, std::nullopt);
  EventBatch again = batch;
  const json::value ids = json::parse("[7, 70000, 0, 4294967295]");
  const json::value event = Taken(&batch).at(1).at(0);
  EXPECT_EQ(event.at("block_hashes"), json::parse("[1, 2]"));
  EXPECT_EQ(event.at("token_ids"), ids);
  EXPECT_EQ(Taken(&again, EventFormat::kLlmd).at(1).at(0).at(3), ids);
}

TEST(EventBatchTest, ABlockWithoutTokenIdsHasAnEventOfItsOwn) {
  const std::array<uint32_t, 1> ids{7};
  EventBatch batch;
  for (uint8_t i = 1; i <= 3; ++i) {
    StoredBlock block = Stored(HashOf(0, i), Tier::kPool);
    if (i > 1) block.parent = HashOf(0, static_cast<uint8_t>(i - 1));
    block.tokens = 1;
    if (i != 2) block.token_ids = ids;
    batch.AddStored(block, std::nullopt);
  }
  const json::value events = Taken(&batch).at(1);
  ASSERT_EQ(events.as_array().size(), 3u);
  EXPECT_EQ(events.at(0).at("token_ids"), json::parse("[7]"));
  EXPECT_EQ(events.at(1).at("token_ids"), json::parse("[]"));
  EXPECT_EQ(events.at(2).at("token_ids"), json::parse("[7]"));
}

TEST(EventBatchTest, IsFullWithFewBlocksOfManyTokens) {
  const std::vector<uint32_t> ids(1024, 1);
  StoredBlock block = Stored(HashOf(0, 1), Tier::kPool);
  block.tokens = 1024;
  block.token_ids = ids;
  EventBatch batch;
  for (int i = 0; i < 63; ++i) batch.AddStored(block, std::nullopt);
  EXPECT_FALSE(batch.full());
  batch.AddStored(block, std::nullopt);
  EXPECT_TRUE(batch.full());
}

TEST(EventBatchTest, NamesTheGroupOfAModelThatHasSeveral) {
  EventBatch batch;
  batch.AddStored(Stored(HashOf(1, 2), Tier::kHost), 3);
  batch.AddRemoved(HashOf(1, 2), Tier::kHost, 3);
  EventBatch again = batch;
  const json::value maps = Taken(&batch).at(1);
  EXPECT_EQ(maps.at(0).at("group_idx"), 3);
  EXPECT_EQ(maps.at(1).at("group_idx"), 3);
  EXPECT_EQ(Taken(&again, EventFormat::kLlmd).at(1), json::parse(R"([
    ["BlockStored", [2], null, [], 16, null, "CPU", null, null, 3],
    ["BlockRemoved", [2], "CPU", 3]])"));
}

TEST(EventBatchTest, TakesTheEndOfAHashThatTheEngineTakes) {
  const BlockHash hash = HashOf(0x80, 0xff);
  EventBatch batch;
  batch.AddRemoved(hash, Tier::kHost, std::nullopt);
  EventBatch sglang = batch;
  EventBatch bytes = batch;
  EventBatch array = batch;
  EXPECT_EQ(Taken(&batch).at(1).at(0).at("block_hashes").at(0), 255);
  const json::value event = Taken(&sglang, EventFormat::kSglang).at(1).at(0);
  EXPECT_EQ(event.at("block_hashes").at(0), INT64_MIN);
  EXPECT_EQ(event.at("medium"), "CPU_PINNED");
  EXPECT_EQ(Taken(&bytes, EventFormat::kVllmBytes).at(1).at(0).at("block_hashes").at(0),
            json::string(hash.Hex()));
  EXPECT_EQ(Taken(&array, EventFormat::kLlmdBytes).at(1).at(0).at(1).at(0),
            json::string(hash.Hex()));
}

TEST(EventBatchTest, PutsTheBlocksOfASequenceIntoOneEvent) {
  EventBatch batch;
  batch.AddStored(Stored(HashOf(0, 1), Tier::kPool), std::nullopt);
  batch.AddStored(Stored(HashOf(0, 2), Tier::kPool, HashOf(0, 1)), std::nullopt);
  batch.AddStored(Stored(HashOf(0, 4), Tier::kPool, HashOf(0, 3)), std::nullopt);
  batch.AddStored(Stored(HashOf(0, 5), Tier::kHost, HashOf(0, 4)), std::nullopt);
  batch.AddRemoved(HashOf(0, 1), Tier::kPool, std::nullopt);
  batch.AddRemoved(HashOf(0, 4), Tier::kPool, std::nullopt);
  EXPECT_EQ(batch.size(), 6u);
  const json::value events = Taken(&batch).at(1);
  ASSERT_EQ(events.as_array().size(), 4u);
  EXPECT_EQ(events.at(0).at("block_hashes"), json::parse("[1, 2]"));
  EXPECT_EQ(events.at(0).at("parent_block_hash"), nullptr);
  EXPECT_EQ(events.at(1).at("block_hashes"), json::parse("[4]"));
  EXPECT_EQ(events.at(2).at("block_hashes"), json::parse("[5]"));
  EXPECT_EQ(events.at(3).at("block_hashes"), json::parse("[1, 4]"));
}

}  // namespace
}  // namespace kvtier
