// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/status.h"

namespace kvtier {
namespace {

constexpr std::string_view kStatus = R"json({
  "schema": "kvtier.status/1", "version": "0.1.0", "pid": 42, "uptime_s": 7440.0,
  "state": "serving", "device": {"kind": "host", "name": "host memory (memfd)"},
  "kernels": {"state": "ready", "engine": "cpu", "library_version": "", "calls": 1024,
              "in_flight": 1, "self_test": {"cases": 48}},
  "disk": {"enabled": true, "engines": ["io_uring"], "degraded": false, "notes": [],
           "index": {"found": "good", "rebuilt": false}},
  "tiers": {"pool": {"capacity_bytes": 268435456, "used_bytes": 67108864, "blocks": 1024},
            "host": {"capacity_bytes": 536870912, "ready_bytes": 536870912, "used_bytes": 0,
                     "blocks": 0},
            "disk": {"capacity_bytes": 4294967296, "used_bytes": 4294967296, "blocks": 1234567}},
  "pools": [{"tenant": "default", "model_name": "a-model-with-a-name-that-is-rather-long",
             "block_bytes": 65536, "blocks": 4096, "free": 3072, "private": 12, "referenced": 1000,
             "cached": 12, "loading": 0}],
  "sessions": {"count": 4}, "references": 128,
  "in_flight": {"loads": 1, "offloads": 2, "disk_reads": 3, "disk_writes": 4},
  "stats": {"blocks": {"asked": 1000, "pool": 500, "host": 200, "disk": 50, "miss": 250},
            "disk_read_errors": 0, "loads_without_counter": 0, "slots_quarantined": 0}})json";

std::string Format(std::string_view json) {
  const boost::json::value status = boost::json::parse(json);
  return FormatStatus(JsonView(&status), Terminal(stdout));
}

TEST(StatusTextTest, ShowsStateTiersPoolsAndHitRate) {
  const std::string text = Format(kStatus);
  for (const char* part :
       {"kvtierd 0.1.0", "serving", "pid 42", "2 h 4 min", "256.0 MiB", "25 %", "io_uring", "1.23M",
        "sessions 4", "75 % hit", "kernels: cpu, self-test passed (48 cases)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// The status with its pool on a GPU.
std::string OnGpu(const std::string& name) {
  std::string status(kStatus);
  constexpr std::string_view kHost = R"json({"kind": "host", "name": "host memory (memfd)"})json";
  return status.replace(status.find(kHost), kHost.size(),
                        R"({"kind": "cuda", "ordinal": 3, "name": ")" + name + R"("})");
}

TEST(StatusTextTest, HitsOfTheSharedStoreAreNotTheDisks) {
  EXPECT_EQ(Format(kStatus).find("shared store"), std::string::npos) << "there is none";
  std::string status(kStatus);
  const auto replace = [&status](std::string_view text, const std::string& by) {
    status.replace(status.find(text), text.size(), by);
  };
  replace(R"("disk": 50, "miss")", R"("disk": 50, "cold": 42, "miss")");
  replace(R"("pools": [)",
          R"("cold": {"available": 0, "lookups": {"found": 3, "skipped": 4}}, "pools": [)");
  std::istringstream lines(Format(status));
  std::string disk, cold;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("disk ")) disk = line;
    if (line.starts_with("cold ") && cold.empty()) cold = line;
  }
  EXPECT_NE(disk.find(" 8  io_uring"), std::string::npos) << disk;
  EXPECT_NE(cold.find(" 42  shared store, away"), std::string::npos) << cold;
}

TEST(StatusTextTest, TellsWhyBlocksWereMissedTheMostFrequentReasonFirst) {
  EXPECT_EQ(Format(kStatus).find("missed:"), std::string::npos) << "there is no reason";
  std::string status(kStatus);
  constexpr std::string_view kStats = R"("stats": {)";
  status.replace(status.find(kStats), kStats.size(),
                 R"("stats": {"misses": {"checksum_mismatch": 39, "unknown": 211, "expired": 0},
                              "declined": {"slower_than_computing": 7},)");
  const std::string text = Format(status);
  EXPECT_NE(text.find("missed: unknown 211, checksum_mismatch 39\n"), std::string::npos) << text;
  EXPECT_NE(text.find("declined: slower_than_computing 7\n"), std::string::npos) << text;
}

TEST(StatusTextTest, ModelsOfOneDirectoryDoNotLookAlike) {
  std::string status(kStatus);
  constexpr std::string_view kPools = R"("pools": [)";
  const auto pool = [](const std::string& model) {
    return R"({"tenant": "default", "model_name": "/data/models/meta-llama/)" + model +
           R"(", "block_bytes": 65536, "blocks": 2048, "free": 1024},)";
  };
  status.replace(status.find(kPools), kPools.size(),
                 std::string(kPools) + pool("Llama-3.1-8B") + pool("Llama-3.1-70B"));
  const std::string text = Format(status);
  EXPECT_NE(text.find("lama-3.1-8B "), std::string::npos) << text;
  EXPECT_NE(text.find("ama-3.1-70B "), std::string::npos) << text;
}

TEST(StatusTextTest, TellsWhichGpuThePoolIsOn) {
  const std::string text = Format(OnGpu("NVIDIA H200"));
  EXPECT_NE(text.find("cuda:3 NVIDIA H200"), std::string::npos) << text;
  EXPECT_EQ(Format(kStatus).find("cuda"), std::string::npos);
}

// The status with two GPUs, and a pool on each.
std::string OnTwoGpus(const std::string& name) {
  std::string status(kStatus);
  const auto replace = [&status](std::string_view text, const std::string& by) {
    status.replace(status.find(text), text.size(), by);
  };
  const std::string gpu = R"({"kind": "cuda", "ordinal": 1, "pool_capacity_bytes": 268435456,
                              "pool_used_bytes": 134217728, "used_bytes": 67108864, "blocks": 1024,
                              "name": ")" +
                          name + R"("})";
  replace(R"("kernels": {)", R"("devices": [)" + gpu + ", " + gpu + R"(],
          "kernels": {"devices": [{"state": "ready"}, {"state": "failed"}],)");
  replace(R"("pools": [)", R"("pools": [{"tenant": "default", "model_name": "m", "device": 1,
          "block_bytes": 65536, "blocks": 2048, "free": 1024},)");
  return status;
}

TEST(StatusTextTest, ShowsALineForEachOfSeveralDevices) {
  const std::string text = Format(OnTwoGpus("NVIDIA H200"));
  EXPECT_NE(text.find("2 devices"), std::string::npos) << text;
  std::istringstream lines(text);
  std::vector<std::string> devices;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("cuda:1 NVIDIA H200") != std::string::npos) devices.push_back(line);
  }
  ASSERT_EQ(devices.size(), 2u) << text;
  // 1,024 blocks of 64 KiB on each, of 256 MiB.
  for (const std::string& line : devices) {
    EXPECT_NE(line.find("1,024"), std::string::npos) << line;
    EXPECT_NE(line.find("25 %"), std::string::npos) << line;
  }
  EXPECT_NE(devices[0].find("ready"), std::string::npos) << text;
  EXPECT_NE(devices[1].find("failed"), std::string::npos) << text;
  EXPECT_EQ(Format(kStatus).find("attention"), std::string::npos);
}

TEST(StatusTextTest, ListsSessionsWithWhatTheyHold) {
  EXPECT_EQ(Format(kStatus).find("blocks held"), std::string::npos) << "there are none";
  std::string status(kStatus);
  std::string list;
  for (int i = 1; i <= 12; ++i) {
    list += (list.empty() ? "" : ",") +
            (R"({"id": )" + std::to_string(i) + R"(, "tenant": "default", "client": "engine-)" +
             std::to_string(i) + R"(", "pid": 4711, "uid": 1000, "references": 7})");
  }
  constexpr std::string_view kSessions = R"("sessions": {"count": 4})";
  status.replace(status.find(kSessions), kSessions.size(),
                 R"("sessions": {"count": 12, "list": [)" + list + "]}");
  const std::string text = Format(status);
  for (const char* part : {"blocks held", "engine-1 ", "engine-10", "4711", "and 2 more"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("engine-11"), std::string::npos) << text;
}

TEST(StatusTextTest, ANoteIsNotCut) {
  const std::string note =
      "the disk tier is smaller than configured: 100.0 GiB of 200.0 GiB, because the file system "
      "keeps disk.free_floor_bytes";
  std::string status(kStatus);
  status.replace(status.find(R"("notes": [])"), 11, R"("notes": [")" + note + R"("])");
  EXPECT_NE(Format(status).find("! " + note + "\n"), std::string::npos);
}

// The status of a daemon that keeps the memory of two engines.
std::string WithKeptMemory() {
  std::string status(kStatus);
  constexpr std::string_view kSessions = R"("sessions": {"count": 4})";
  return status.replace(status.find(kSessions), kSessions.size(), R"("sessions": {"count": 4},
      "kept_memory": {"keep_for_ms": 600000, "list": [
        {"tenant": "default", "name": "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1", "device": 0,
         "bytes": 34359738368, "waiting": false, "owner_pid": 4711, "waiting_ms": 0},
        {"tenant": "default", "name": "d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2", "device": "host",
         "bytes": 1048576, "waiting": true, "owner_pid": 0, "waiting_ms": 30000}]})");
}

TEST(StatusTextTest, TellsWhoOwnsKeptMemoryOrHowLongItWaits) {
  const std::string text = Format(WithKeptMemory());
  for (const char* part : {"kept memory", "default/d1d1", "32.0 GiB", "pid 4711", "1.0 MiB", "host",
                           "waiting 30.0 s of 10 min 0 s"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(Format(kStatus).find("kept memory"), std::string::npos);
}

// The status of a daemon whose memory this one keeps for the next.
std::string WithHolder(const std::string& holder) {
  std::string status(kStatus);
  constexpr std::string_view kSessions = R"("sessions": {"count": 4})";
  return status.replace(status.find(kSessions), kSessions.size(),
                        R"("sessions": {"count": 4}, "restart": )" + holder);
}

TEST(StatusTextTest, TellsWhoKeepsMemoryOverARestartAndUntilWhen) {
  const std::string kept = Format(WithHolder(
      R"({"holder": "kvtier-keeper", "pid": 4711, "until": "10min after the daemon's end",
          "reason": "", "bytes": {"kvtier-keeper": 68719476736, "systemd": 0}, "list": []})"));
  EXPECT_NE(kept.find("over a restart: 64.0 GiB kept by kvtier-keeper (pid 4711)\n"
                      "  until 10min after the daemon's end\n"),
            std::string::npos)
      << kept;
  const std::string none = Format(WithHolder(
      R"({"holder": "none", "pid": 0, "until": "", "reason": "restart.keep_for is 0",
          "bytes": {"kvtier-keeper": 0, "systemd": 0}, "list": []})"));
  EXPECT_NE(none.find("nothing in memory is kept\n  restart.keep_for is 0\n"), std::string::npos)
      << none;
}

TEST(StatusTextTest, NoLineIsLongerThanEightyColumnsHoweverLargeTheNumbers) {
  std::string large = OnGpu("NVIDIA with a name that is longer than any");
  for (const char* number : {"1024", "4096", "3072", "1000", "268435456"}) {
    for (size_t at = large.find(number); at != std::string::npos; at = large.find(number, at)) {
      large.replace(at, std::string_view(number).size(), "18000000000000000000");
      at += 20;
    }
  }
  std::istringstream lines(Format(large) + Format(kStatus) + Format(WithKeptMemory()) +
                           Format(OnTwoGpus("NVIDIA with a name that is longer than any")));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(StatusTextTest, TroublesAreShownAndAHealthyDaemonHasNone) {
  EXPECT_EQ(Format(kStatus).find("! "), std::string::npos);
  std::string troubled(kStatus);
  troubled.replace(troubled.find(R"("disk_read_errors": 0)"), 21, R"("disk_read_errors": 7)");
  troubled.replace(troubled.find(R"("rebuilt": false)"), 16, R"("rebuilt": true)");
  troubled.replace(troubled.find(R"("state": "ready")"), 16,
                   R"("state": "failed", "reason": "self-test: decode")");
  constexpr std::string_view kCounted = R"("loads_without_counter": 0)";
  troubled.replace(troubled.find(kCounted), kCounted.size(), R"("loads_without_counter": 12)");
  const std::string text = Format(troubled);
  EXPECT_NE(text.find("! 7 disk_read_errors"), std::string::npos) << text;
  EXPECT_NE(text.find("! 12 loads_without_counter"), std::string::npos) << text;
  EXPECT_NE(text.find("! the index was rebuilt"), std::string::npos) << text;
  EXPECT_NE(text.find("! kernels off: self-test: decode"), std::string::npos) << text;
}

TEST(StatusTextTest, AbsentMembersReadAsNothing) {
  const std::string text = Format(R"({"schema": "kvtier.status/1", "state": "serving"})");
  EXPECT_NE(text.find("sessions 0"), std::string::npos) << text;
}

TEST(ReplyTest, AnythingElseThanADocumentOfTheDaemonIsRefused) {
  EXPECT_TRUE(ParseReply(std::string(kStatus)));
  for (const char* json : {"", "[]", "{", R"({"schema": "other/1"})", R"({"schema": 5})"}) {
    const auto reply = ParseReply(json);
    ASSERT_FALSE(reply) << json;
    EXPECT_EQ(reply.error().reason, "bad_reply");
  }
}

}  // namespace
}  // namespace kvtier
