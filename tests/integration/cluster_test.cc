// SPDX-License-Identifier: Apache-2.0
// Two daemons that share nothing but a pool of a cluster of Ceph, which tools/test-cluster.sh
// starts.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/harness/two_hosts_test.h"

namespace kvtier {
namespace {

// An object of the pool.
struct Place {
  std::string name_space;
  std::string name;
};

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteWhole(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class ClusterTest : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    const char* const cluster = std::getenv("KVTIER_TEST_CLUSTER");
    if (cluster == nullptr) GTEST_SKIP() << "run by tools/test-cluster.sh";
    cluster_ = cluster;
    (void)Rados({"purge", "kvtier", "--yes-i-really-really-mean-it"});
    ASSERT_EQ(Objects().size(), 0u);
  }
  [[nodiscard]] std::string Configuration() const { return cluster_ + "/ceph.conf"; }
  [[nodiscard]] std::vector<std::string> StoreSettings() const override {
    return {"cold.kind=rados", "cold.endpoint=kvtier@" + Configuration()};
  }
  [[nodiscard]] size_t CountObjects() override { return Objects().size(); }

  // tools/test-cluster.sh with the cluster's directory.
  void Script(const std::string& verb, const std::vector<std::string>& rest) const {
    std::vector<std::string> command = {KVTIER_CLUSTER_SCRIPT, verb, cluster_};
    command.insert(command.end(), rest.begin(), rest.end());
    const ProgramResult result = RunProgram(command);
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  void Signal(const std::string& signal, std::vector<std::string> osds) const {
    osds.insert(osds.begin(), signal);
    Script("signal", osds);
  }
  [[nodiscard]] std::string Rados(const std::vector<std::string>& words) const {
    std::vector<std::string> command = {"/usr/bin/rados", "--conf", Configuration(), "-p",
                                        "kvtier"};
    command.insert(command.end(), words.begin(), words.end());
    return RunProgram(command).output;
  }
  [[nodiscard]] std::string Ceph(const std::vector<std::string>& words) const {
    std::vector<std::string> command = {"/usr/bin/ceph", "--conf", Configuration()};
    command.insert(command.end(), words.begin(), words.end());
    return RunProgram(command).output;
  }
  [[nodiscard]] bool OsdsUp(int count) const {
    return Ceph({"osd", "stat"}).find(": " + std::to_string(count) + " up") != std::string::npos;
  }
  // Blocks, without indexes and lists.
  [[nodiscard]] std::vector<Place> Objects() const {
    std::vector<Place> objects;
    std::istringstream lines(Rados({"--all", "ls"}));
    for (std::string line; std::getline(lines, line);) {
      const size_t tab = line.find('\t');
      if (!line.starts_with("kvtier/1/") || tab == std::string::npos) continue;
      Place place{line.substr(0, tab), line.substr(tab + 1)};
      if (place.name.starts_with("index/") || place.name == "periods") continue;
      objects.push_back(std::move(place));
    }
    return objects;
  }
  [[nodiscard]] std::string Get(const Place& place) const {
    const std::string file = directory() + "/object";
    (void)Rados({"-N", place.name_space, "get", place.name, file});
    return ReadWhole(file);
  }
  void Put(const Place& place, const std::string& bytes) const {
    const std::string file = directory() + "/object";
    WriteWhole(file, bytes);
    (void)Rados({"-N", place.name_space, "put", place.name, file});
  }
  [[nodiscard]] bool PoolIsFull() const {
    return Ceph({"osd", "pool", "ls", "detail"}).find(",full") != std::string::npos;
  }
  // As much as the OSDs are then said to hold at most.
  void FillPool() const {
    for (const char* const name : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
      Put({"filler", name}, std::string(8 << 20, 'x'));
    }
    (void)Ceph({"osd", "set-nearfull-ratio", "0.0001"});
    (void)Ceph({"osd", "set-backfillfull-ratio", "0.0002"});
    (void)Ceph({"osd", "set-full-ratio", "0.0003"});
    ASSERT_TRUE(Eventually([this] { return PoolIsFull(); }));
  }
  void EmptyPool() const {
    (void)Ceph({"osd", "set-full-ratio", "0.95"});
    (void)Ceph({"osd", "set-backfillfull-ratio", "0.90"});
    (void)Ceph({"osd", "set-nearfull-ratio", "0.85"});
    ASSERT_TRUE(Eventually([this] { return !PoolIsFull(); }));
  }

  std::string cluster_;
};

TEST_F(ClusterTest, WhatOneHostComputedAnotherServesByteForByte) {
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(Cold(other().admin_socket()).at("read_blocks").to_number<uint64_t>(), kBlocks);
}

TEST_F(ClusterTest, AKilledOsdCostsNoObjectThatAnotherHasToo) {
  WriteByFirstHost();
  Signal("KILL", {"0"});
  EXPECT_TRUE(Eventually([this] { return OsdsUp(2); }));
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.wrong_blocks, 0u);
  Script("revive", {"0"});
  EXPECT_TRUE(Eventually([this] { return OsdsUp(3); }));
}

TEST_F(ClusterTest, ACallThatStandsStillCostsMissesAndNoLocalHit) {
  WriteByFirstHost();
  StartOtherHost({"cold.lookup_deadline_ms=1000"});
  Signal("STOP", {"0", "1", "2"});
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, kBlocks / 2);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(Cold(other().admin_socket()).at("lookups").at("late").to_number<uint64_t>(), 1u);
  Signal("CONT", {"0", "1", "2"});
  EXPECT_TRUE(Eventually([this] { return OsdsUp(3); }));
  ReadByOtherHostFrom(kBlocks / 2 + 1);
}

TEST_F(ClusterTest, OsdsThatEndAndComeBackServeWhatTheyHad) {
  WriteByFirstHost();
  StartOtherHost({"cold.lookup_deadline_ms=1000"});
  Signal("TERM", {"0", "1", "2"});
  Script("await", {"0", "1", "2"});
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, kBlocks / 2);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, 0u) << "local hits";
  Script("revive", {"0", "1", "2"});
  EXPECT_TRUE(Eventually([this] { return CountObjects() >= kBlocks; }));
  ReadByOtherHostFrom(kBlocks / 2 + 1);
}

TEST_F(ClusterTest, AFullPoolTakesNothingAndIsWrittenToWhenThereIsSpace) {
  FillPool();
  StartDaemon({}, Settings());
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(Play(Prompt("others", 60)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("more", 60)).wrong_blocks, 0u);
  EXPECT_TRUE(Eventually([this] {
    return Cold(daemon().admin_socket()).at("write_errors").to_number<uint64_t>() > 0;
  }));
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u) << "local hits";
  EXPECT_EQ(CountObjects(), 0u);
  EmptyPool();
  EXPECT_TRUE(Eventually([this] { return CountObjects() >= kBlocks; }));
}

TEST_F(ClusterTest, DamagedObjectsAreMissesWithTheirReasons) {
  WriteByFirstHost();
  const std::vector<Place> objects = Objects();
  for (const Place& object : objects) {
    std::string bytes = Get(object);
    ASSERT_GT(bytes.size(), 9000u);
    bytes[9000] ^= 1;
    Put(object, bytes);
  }
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("checksum_mismatch"), 0u);
}

TEST_F(ClusterTest, TruncatedObjectsAreMissesWithTheirReasons) {
  WriteByFirstHost();
  for (const Place& object : Objects()) Put(object, Get(object).substr(0, 9000));
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("checksum_mismatch"), 0u);
}

TEST_F(ClusterTest, AnotherBlockUnderARightNameIsAMissWithItsReason) {
  WriteByFirstHost();
  const std::vector<Place> objects = Objects();
  const std::string first = Get(objects[0]);
  for (const Place& object : objects) Put(object, first);
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("identity_mismatch"), 0u);
}

TEST_F(ClusterTest, PeriodsThatHaveEndedAreDeletedAndOthersStay) {
  WriteByFirstHost();
  const std::string tenant = Objects()[0].name_space.substr(0, Objects()[0].name_space.rfind('/'));
  const size_t objects = CountObjects();
  const Place ended{tenant + "/00000007", "model/hash"};
  Put(ended, "bytes");
  (void)Rados({"-N", ended.name_space, "setomapval", "index/model", "hash", ""});
  (void)Rados({"-N", tenant + "/", "setomapval", "periods", "00000007/model", ""});
  ASSERT_EQ(CountObjects(), objects + 1);
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_TRUE(Eventually([this, &objects] { return CountObjects() == objects; }));
  EXPECT_TRUE(Eventually([this, &ended] {
    return Rados({"--all", "ls"}).find(ended.name_space) == std::string::npos;
  }));
  EXPECT_EQ(Rados({"-N", tenant + "/", "listomapkeys", "periods"}).find("00000007"),
            std::string::npos);
}

TEST_F(ClusterTest, AnErasureDeletesTheTenantsObjectsAndOthersCanBeWrittenAfterIt) {
  WriteByFirstHost();
  const Place foreign{"kvtier/1/default2/00000007", "model/hash"};
  Put(foreign, "bytes");
  StartOtherHost();
  const ProgramResult erased =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "erase", "--tenant",
                  "default", "--yes", "--without-proof"});
  EXPECT_EQ(erased.exit_code, 0) << erased.output;
  ASSERT_EQ(CountObjects(), 1u);
  EXPECT_EQ(Objects()[0].name_space, foreign.name_space);
  // By the first host, which knows nothing of it.
  EXPECT_EQ(Play(Prompt("later", kBlocks)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("later", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(Play(Prompt("others again", 60)).wrong_blocks, 0u);
  EXPECT_EQ(Play(Prompt("more again", 60)).wrong_blocks, 0u);
  EXPECT_TRUE(Eventually([this] { return CountObjects() > kBlocks; }));
  EXPECT_EQ(PlayOnOther(Prompt("later", kBlocks)).blocks.miss, 0u);
}

TEST_F(ClusterTest, ADaemonStartsWithoutItsCluster) {
  const std::string file = directory() + "/nothing.conf";
  WriteWhole(file,
             "[global]\nfsid = 8f4b9c1e-2d53-4d8a-9a55-3f1f1d2f7a01\n"
             "mon_host = v2:127.0.0.1:9\nauth_client_required = none\n");
  StartDaemon({}, {"cold.kind=rados", "cold.endpoint=kvtier@" + file, "cold.after=0s"});
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Play(Prompt("shared", kBlocks)).blocks.miss, 0u);
  EXPECT_EQ(daemon().Terminate(), 0);
}

}  // namespace
}  // namespace kvtier
