// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/sample_messages.h"

#include <utility>

#include "protocol/frame.h"
#include "protocol/messages.h"

namespace kvtier::wire {
namespace {

// 32 equal bytes: easy to find in a dump.
BlockHash HashOf(uint8_t byte) {
  BlockHash hash;
  hash.bytes.fill(byte);
  return hash;
}

class SampleList {
 public:
  template <typename Message>
  void Add(std::string name, uint64_t request_id, const Message& message) {
    std::vector<std::byte> frame;
    Encode(message, request_id, &frame);
    samples_.push_back({std::move(name), std::move(frame)});
  }
  template <typename Message>
  void AddFireAndForget(std::string name, uint64_t request_id, bool want_reply,
                        const Message& message) {
    std::vector<std::byte> frame;
    Encode(message, request_id, &frame, want_reply ? kFlagWantReply : 0);
    samples_.push_back({std::move(name), std::move(frame)});
  }
  std::vector<Sample> Take() { return std::move(samples_); }

 private:
  std::vector<Sample> samples_;
};

void AddSession(SampleList* list) {
  list->Add("hello", 1, Hello{1, 0, "engine-0"});
  HelloReply reply;
  reply.session = SessionId{5};
  reply.daemon_generation = 0x1122334455667788;
  reply.max_references = 1u << 20;
  reply.tenant = "default";
  reply.secret.bytes.fill(8);
  list->Add("hello_reply", 1, reply);
  list->Add("register_model", 2, RegisterModel{SampleModelRecord()});
  list->Add("register_model_reply", 2, RegisterModelReply{ModelId{1}, {{HashOf(0xfe), 1024}}});
  list->Add("devices", 12, Devices{});
  DevicesReply devices;
  devices.devices.push_back({DeviceKind::kCuda, {}, 1ull << 30, "gpu"});
  for (uint8_t i = 0; i < 16; ++i) devices.devices[0].uuid[i] = i;
  devices.devices.push_back({DeviceKind::kHost, {}, 4096, "host"});
  list->Add("devices_reply", 12, devices);
  list->Add("attach", 3, Attach{ModelId{1}, 0, 0, 0});
  list->Add("attach_reply", 3, AttachReply{PoolId{1}, 9, 4096, 1024, 4, DeviceKind::kHost});
  list->Add("detach", 34, Detach{PoolId{1}});
}

void AddBlocks(SampleList* list) {
  const std::vector<BlockHash> hashes = {HashOf(0xa1), HashOf(0xa2)};
  const std::vector<BlockHash> partial_blocks = {HashOf(0xb1)};
  list->Add("acquire", 4, Acquire{LoadOrder::kBlocks, {{PoolId{1}, 1, hashes, partial_blocks}}});
  list->Add("acquire_nothing", 4, Acquire{LoadOrder::kBlocks, {{PoolId{1}, 0, {}, {}}}});
  list->Add("acquire_in_layers", 4, Acquire{LoadOrder::kLayers, {{PoolId{1}, 0, hashes, {}}}});
  list->Add("acquire_groups", 4,
            Acquire{LoadOrder::kBlocks,
                    {{PoolId{1}, 1, hashes, {}}, {PoolId{2}, 0, std::span(hashes).first(1), {}}}});
  const LoadWish wish{.plan = HitPlan::kCut,
                      .deadline_ms = 250,
                      .tokens = 40,
                      .cost = {.per_token_us = 12.5F, .per_pair_us = 0.25F, .fixed_us = 4}};
  list->Add("acquire_with_wish", 4,
            Acquire{LoadOrder::kBlocks, {{PoolId{1}, 1, hashes, {}}}, wish});
  AcquireReply::Part reply;
  reply.load = LoadId{7};
  reply.counter = LoadCounter{.offset = 64, .base = 9, .steps = 2};
  reply.miss = MissReason::kUnknown;
  reply.partial_block = 0;
  reply.hits = {{{BlockIndex{2}, 3}, Tier::kPool, 16}, {{BlockIndex{0}, 1}, Tier::kDisk, 5}};
  reply.new_blocks = {{BlockIndex{1}, 4}};
  list->Add("acquire_reply", 4, AcquireReply{{reply}});
  AcquireReply::Part of_window;
  of_window.first_hit = 1;
  of_window.hits = {{{BlockIndex{4}, 2}, Tier::kHost, 16}};
  list->Add("acquire_reply_groups", 4, AcquireReply{{reply, of_window}});
  AcquireReply::Part with_forecast = reply;
  with_forecast.partial_block.reset();
  with_forecast.forecast = LoadForecast{.load_us = 900, .ready_us = 1100};
  list->Add("acquire_reply_with_forecast", 4, AcquireReply{{with_forecast}});
  list->Add("acquire_reply_nothing", 4, AcquireReply{});
  list->Add("load_progress", 0, LoadProgress{{LoadId{7}, 2, true, MissReason::kNone}});

  CommitItem first{{BlockIndex{1}, 4}, HashOf(0xa1), {}, 16, 0, RetentionClass::kExtended, {}};
  CommitItem second = first;
  second.parent = HashOf(0xa1);
  second.hash = HashOf(0xa2);
  second.depth = 1;
  second.tokens = 5;
  second.retention = RetentionClass::kMemory;
  second.checksum.emplace().bytes.fill(0xcc);
  list->AddFireAndForget("commit", 5, false, Commit{PoolId{1}, {first, second}});
  list->Add(
      "commit_reply", 5,
      CommitReply{{{0, CommitOutcome::kDuplicate, ErrorCode::kInternal, ""},
                   {1, CommitOutcome::kFailed, ErrorCode::kStaleHandle, "stale_generation"}}});
  list->AddFireAndForget("release", 6, true,
                         Release{PoolId{1}, {{BlockIndex{2}, 3}, {BlockIndex{1}, 4}}});
  list->Add("release_reply", 6, ReleaseReply{{{1, ErrorCode::kNotOwner, "not_held"}}});
}

void AddLookups(SampleList* list) {
  const std::vector<BlockHash> hashes = {HashOf(0xa1), HashOf(0xa2)};
  list->Add("prefetch", 7, Prefetch{PoolId{1}, hashes});
  list->Add("prefetch_reply", 7, PrefetchReply{2});
  list->Add("lookup", 8, Lookup{PoolId{1}, hashes});
  list->Add("lookup_reply", 8, LookupReply{{kPresentInPool | kPersistedOnDisk, 0}});
  list->Add("pin", 9, Pin{PoolId{1}, 60000, hashes});
  list->Add("pin_reply", 9, PinReply{1});
  list->Add("hint", 30, Hint{PoolId{1}, SequenceHint::kReturns, 30000, hashes});
  list->Add("hint_reply", 30, HintReply{2});
  list->AddFireAndForget("tokens", 32, true,
                         Tokens{PoolId{1}, {{hashes[0], 3}, {hashes[1], 1}}, {9906, 1917, 11, 7}});
  list->Add("tokens_question", 33, Tokens{PoolId{1}, {}, {}});
  list->Add("tokens_reply", 32, TokensReply{true, 2});
  Resume resume{.pool = PoolId{1}, .session = SessionId{7}, .more = true, .claims = {}};
  resume.secret.bytes.fill(9);
  resume.claims = {{{BlockIndex{4}, 2}, 1}, {{BlockIndex{5}, 3}, 12}};
  list->Add("resume", 31, resume);
  list->Add(
      "resume_reply", 31,
      ResumeReply{{ResumeOutcome::kPrivate, ResumeOutcome::kReferenced, ResumeOutcome::kLost}});
}

void AddAttention(SampleList* list) {
  list->Add("workspace", 12, Workspace{PoolId{1}, 0, 65536});
  list->Add("workspace_reply", 12, WorkspaceReply{65536, DeviceKind::kHost});
  list->Add("workspace_close", 15, WorkspaceClose{1});
  Attend attend;
  attend.pool = PoolId{1};
  attend.layer = 1;
  attend.q_heads = 4;
  attend.softmax_scale = 0.25F;
  attend.output_offset = 4096;
  attend.sequences = {{1, 21}, {3, 16}};
  attend.blocks = {{BlockIndex{2}, 3}, {BlockIndex{0}, 1}, {BlockIndex{1}, 4}};
  attend.key_scales = {0.5F};
  attend.value_scales = {2.0F, 0.25F};
  list->Add("attend", 13, attend);
  attend.key_scales.clear();
  attend.value_scales.clear();
  list->Add("attend_without_scales", 14, attend);
  attend.lse_offset = 8192;
  attend.sequences.clear();
  attend.blocks.clear();
  list->Add("attend_nothing", 13, attend);
  list->Add("attend_reply", 13, AttendReply{48500});
}

void AddRegions(SampleList* list) {
  OpenRegion open;
  open.model = ModelId{1};
  open.bytes = 8192;
  open.blocks = 4;
  open.pieces = {{0, 512, 512}, {4096, 1024, 512}};  // the first layers, then the second
  list->Add("open_region", 16, open);
  open.memory = RegionMemory::kCudaIpc;
  open.device = 1;
  for (uint8_t i = 0; i < 64; ++i) open.ipc_handle[i] = i;
  list->Add("open_region_ipc", 16, open);
  open.memory = RegionMemory::kVmm;
  open.kept.emplace().fill(0xce);
  list->Add("open_region_kept", 16, open);
  list->Add("open_region_reply", 16, OpenRegionReply{PoolId{3}, 1024});
  list->Add("close_region", 17, CloseRegion{PoolId{3}});
  list->Add("close_region_reply", 17, CloseRegionReply{});
  list->Add("store", 18,
            Store{PoolId{3},
                  7,
                  {{2, HashOf(0xa1), {}, 16, 0, RetentionClass::kExtended},
                   {0, HashOf(0xa2), HashOf(0xa1), 5, 1, RetentionClass::kMemory}}});
  list->Add("store_now", 21,
            Store{PoolId{3}, 10, {{2, HashOf(0xa1), {}, 16, 0, RetentionClass::kExtended}}, {}});
  list->Add("load", 19,
            Load{PoolId{3},
                 8,
                 LoadOrder::kLayers,
                 {{1, HashOf(0xa1)}, {3, HashOf(0xa2)}},
                 LoadCounter{.offset = 0x4040, .base = 34, .steps = 32}});
  list->Add("load_whole", 20,
            Load{PoolId{3}, 9, LoadOrder::kBlocks, {{1, HashOf(0xa1)}}, std::nullopt});
  list->Add("transfer_done", 0, TransferDone{PoolId{3}, 8, 1, 0, {{1, MissReason::kUnknown}}});
  list->Add("transfer_done_skipped", 0, TransferDone{PoolId{3}, 7, 1, 1, {}});
}

void AddKeptMemory(SampleList* list) {
  const KeptMemoryName name = HashOf(0xd1).bytes;
  list->Add("keep_memory", 22, KeepMemory{name, 1, RegionMemory::kVmm, 1ull << 30, 65600});
  list->Add("keep_memory_reply", 22, KeepMemoryReply{});
  list->Add("take_memory", 23, TakeMemory{name, false});
  list->Add("take_memory_reply", 23,
            TakeMemoryReply{true, RegionMemory::kSharedMemory, 0, 8192, 320});
  list->Add("take_memory_nothing", 24, TakeMemory{HashOf(0xd2).bytes, true});
  list->Add("take_memory_reply_nothing", 24, TakeMemoryReply{});
  list->Add("release_memory", 25, ReleaseMemory{.name = name});
  list->Add("release_memory_device", 26, ReleaseMemory{.device = 1, .name = std::nullopt});
  list->Add("release_memory_reply", 25, ReleaseMemoryReply{1, 8192});
}

void AddRest(SampleList* list) {
  list->Add("stats", 10, Stats{});
  list->Add("stats_reply", 10, StatsReply{10, 4, 3, 2, 1, 64, 32, 8, 20, 4});
  list->Add("ping", 11, Ping{});
  list->Add("pong", 11, Pong{});
  list->Add("error", 4,
            ErrorReply{{ErrorCode::kResourceExhausted, "pool_full", "64 blocks asked, 3 free"}});
  list->Add("admin_request", 1, AdminRequest{R"({"verb":"status"})"});
  list->Add("admin_progress", 1, AdminProgress{R"({"checked":512})"});
  list->Add("admin_reply", 1, AdminReply{R"({"ok":true})"});
}

}  // namespace

ModelRecord SampleModelRecord() {
  ModelRecord record;
  record.name = "tiny";
  record.revision = "r1";
  record.groups[0].layers = 2;
  record.groups[0].kv_heads = 1;
  record.groups[0].k_head_dim = 8;
  record.groups[0].v_head_dim = 8;
  record.extra = {{"rope_theta", "10000"}};
  return record;
}

std::vector<Sample> SampleMessages() {
  SampleList list;
  AddSession(&list);
  AddBlocks(&list);
  AddLookups(&list);
  AddAttention(&list);
  AddRegions(&list);
  AddKeptMemory(&list);
  AddRest(&list);
  return list.Take();
}

}  // namespace kvtier::wire
