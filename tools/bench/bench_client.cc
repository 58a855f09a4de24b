// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/digest.h"
#include "tools/bench/daemon_status.h"
#include "tools/replay/block_pattern.h"
#include "tools/support/admin.h"
#include "tools/support/json_view.h"

namespace kvtier {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr int64_t kAdminSilenceMs = 300'000;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<BenchClient> BenchClient::Connect(const PrivateDaemon& daemon, uint64_t block_bytes,
                                         uint32_t layers) {
  KVT_RETURN_IF_ERROR(WaitForHostMemory(daemon.admin_socket()));
  KVT_ASSIGN_OR_RETURN(
      BenchClient client,
      Connect({.socket = daemon.socket(), .block_bytes = block_bytes, .layers = layers},
              daemon.admin_socket()));
  client.daemon_ = daemon.pid();
  return client;
}

Result<BenchClient> BenchClient::Connect(const ReplayTarget& target,
                                         const std::string& admin_socket) {
  KVT_ASSIGN_OR_RETURN(ReplayClient client, ReplayClient::Connect(target, kBlockTokens));
  return BenchClient(std::move(client), admin_socket);
}

std::vector<BlockHash> BenchClient::Set(uint64_t seed, size_t count) {
  std::vector<BlockHash> hashes;
  hashes.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    ByteWriter writer;
    writer.WriteString("kvtier.bench");
    writer.Write(seed);
    writer.Write(i);
    hashes.push_back(Sha256(writer.data()));
  }
  return hashes;
}

Status BenchClient::Store(const std::vector<BlockHash>& set) {
  TraceRequest request;
  request.hashes = set;
  request.input_tokens = static_cast<uint32_t>(set.size() * kBlockTokens);
  KVT_RETURN_IF_ERROR(client_.Play(request));
  KVT_RETURN_IF_ERROR(Settle());
  if (const ReplayReport& seen = client_.Finish(); !seen.Complete()) {
    return MakeError(
        ErrorCode::kResourceExhausted, "not_stored",
        fmt::format("of a set of {} blocks; no room {} times, {} lost, {} errors", set.size(),
                    seen.requests_without_room, seen.blocks_lost_loading, seen.errors));
  }
  return {};
}

Result<kvt::Acquired> BenchClient::CommitNew(const std::vector<BlockHash>& set, bool fill) {
  auto acquired = client_.pool().Acquire({}, {}, static_cast<uint32_t>(set.size()));
  if (!acquired) return FromClient(acquired.error());
  const std::vector<kvt_hash> hashes = ToWire(set);
  std::vector<std::byte> bytes(client_.pool().Info().block_bytes);
  std::vector<kvt_commit_entry> entries(set.size());
  for (uint32_t i = 0; i < set.size(); ++i) {
    if (fill) {
      FillBlock(set[i], bytes);
      const auto written = client_.pool().Write(acquired->new_blocks[i], bytes);
      if (!written) return FromClient(written.error());
    }
    entries[i].block = acquired->new_blocks[i];
    entries[i].hash = hashes[i];
    entries[i].depth = i;
    entries[i].tokens = kBlockTokens;
    entries[i].retention = KVT_RETENTION_EXTENDED;
  }
  if (const auto committed = client_.pool().Commit(entries); !committed) {
    return FromClient(committed.error());
  }
  return std::move(*acquired);
}

Result<TimedOffload> BenchClient::CommitAndTimeRoom(const std::vector<BlockHash>& set) {
  KVT_ASSIGN_OR_RETURN(kvt::Acquired committed, CommitNew(set, false));
  KVT_RETURN_IF_ERROR(Settle());
  KVT_ASSIGN_OR_RETURN(const uint64_t before_bytes, OffloadedBytes());
  const auto start = std::chrono::steady_clock::now();
  committed.new_blocks.Release();
  auto room = client_.pool().Acquire({}, {}, static_cast<uint32_t>(set.size()));
  const double seconds = SecondsSince(start);
  if (!room) return FromClient(room.error());
  KVT_ASSIGN_OR_RETURN(const uint64_t after_bytes, OffloadedBytes());
  room->new_blocks.Release();
  KVT_RETURN_IF_ERROR(Settle());
  return TimedOffload{.seconds = seconds, .bytes = after_bytes - before_bytes};
}

Result<TimedOffload> BenchClient::CommitAndTimeRest(const std::vector<BlockHash>& set, bool fill) {
  KVT_ASSIGN_OR_RETURN(kvt::Acquired acquired, CommitNew(set, fill));
  KVT_RETURN_IF_ERROR(Settle());
  KVT_ASSIGN_OR_RETURN(const uint64_t before_bytes, OffloadedBytes());
  const auto start = std::chrono::steady_clock::now();
  acquired.new_blocks.Release();
  KVT_RETURN_IF_ERROR(Settle());
  const double seconds = SecondsSince(start);
  KVT_ASSIGN_OR_RETURN(const uint64_t after_bytes, OffloadedBytes());
  return TimedOffload{.seconds = seconds, .bytes = after_bytes - before_bytes};
}

Result<uint64_t> BenchClient::OffloadedBytes() {
  KVT_ASSIGN_OR_RETURN(const boost::json::value status, AskStatus(admin_socket_));
  return JsonView(&status)["stats"]["offload_bytes"].Count();
}

Result<TimedLoad> BenchClient::Load(const std::vector<BlockHash>& set) {
  return Load(set, KVT_LOAD_BLOCKS, [](kvt::Pool*, kvt::Acquired*) { return Status(); });
}

Result<TimedLoad> BenchClient::Load(const std::vector<BlockHash>& set, kvt_load_order order,
                                    const BeforeWait& before) {
  const std::vector<kvt_hash> hashes = ToWire(set);
  TimedLoad load;
  const DaemonCpu before_cpu = CpuOf(daemon_);
  const auto start = std::chrono::steady_clock::now();
  auto acquired = client_.pool().Acquire(hashes, {}, 0, order);
  if (!acquired) return FromClient(acquired.error());
  KVT_RETURN_IF_ERROR(before(&client_.pool(), &*acquired));
  load.first_seconds = SecondsSince(start);
  const auto promised = static_cast<uint32_t>(acquired->hits.size());
  const auto progress = client_.pool().Wait(&*acquired, promised);
  if (!progress) return FromClient(progress.error());
  load.seconds = SecondsSince(start);
  load.cpu = CpuOf(daemon_) - before_cpu;
  load.ready = acquired->hits.size();
  for (const auto& source : acquired->sources) ++load.hit[source.tier];
  acquired->hits.Release();
  KVT_RETURN_IF_ERROR(Settle());
  return load;
}

Result<double> BenchClient::AcquireUs(const std::vector<kvt_hash>& set) {
  const auto start = std::chrono::steady_clock::now();
  auto acquired = client_.pool().Acquire(set);
  const double microseconds = SecondsSince(start) * 1e6;
  if (!acquired) return FromClient(acquired.error());
  if (acquired->hits.size() != set.size() || acquired->load.id != 0) {
    return MakeError(ErrorCode::kWrongState, "not_resident",
                     fmt::format("{} of {} blocks", acquired->hits.size(), set.size()));
  }
  acquired->hits.Release();
  // The release must not be part of the next measurement.
  if (const auto flushed = client_.connection().Flush(); !flushed) {
    return FromClient(flushed.error());
  }
  return microseconds;
}

Result<double> BenchClient::PingUs() {
  const auto round_trip_us = client_.connection().Ping();
  if (!round_trip_us) return FromClient(round_trip_us.error());
  return *round_trip_us;
}

Result<uint64_t> BenchClient::CountOnDisk(const std::vector<BlockHash>& set) {
  const auto presence = client_.pool().Lookup(ToWire(set));
  if (!presence) return FromClient(presence.error());
  return std::ranges::count_if(*presence,
                               [](uint8_t tiers) { return (tiers & KVT_PRESENT_DISK) != 0; });
}

Status BenchClient::Evict(const std::vector<BlockHash>& set, std::string_view more) {
  // As many hashes as fit a request of the admin socket.
  constexpr size_t kHashesPerRequest = 512;
  for (size_t first = 0; first < set.size(); first += kHashesPerRequest) {
    const auto part =
        std::span(set).subspan(first, std::min(kHashesPerRequest, set.size() - first));
    std::string hashes;
    for (const BlockHash& hash : part) {
      hashes += fmt::format("{}\"{}\"", hashes.empty() ? "" : ",", hash.Hex());
    }
    const auto reply =
        CallAdmin(admin_socket_, fmt::format(R"({{"op":"evict",{}"hashes":[{}]}})", more, hashes),
                  kAdminSilenceMs);
    if (!reply) return tl::unexpected(reply.error());
  }
  return {};
}

Status BenchClient::Drain() {
  const auto reply = CallAdmin(admin_socket_, R"({"op":"drain"})", kAdminSilenceMs);
  if (!reply) return tl::unexpected(reply.error());
  return {};
}

Status BenchClient::Settle() {
  if (const auto flushed = client_.connection().Flush(); !flushed) {
    return FromClient(flushed.error());
  }
  const auto reply = CallAdmin(admin_socket_, R"({"op":"settle"})", kAdminSilenceMs);
  if (!reply) return tl::unexpected(reply.error());
  return {};
}

}  // namespace kvtier
