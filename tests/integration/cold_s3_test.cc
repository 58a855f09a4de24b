// SPDX-License-Identifier: Apache-2.0
// Two daemons that share nothing but a bucket, on a server that checks signatures.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fakes/s3_server.h"
#include "tests/integration/harness/two_hosts_test.h"

namespace kvtier {
namespace {

class ColdS3Test : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    std::ofstream(Credentials()) << "[default]\naws_access_key_id = AKIDTEST\n"
                                    "aws_secret_access_key = secret/+of=tests\n";
  }
  [[nodiscard]] std::string Credentials() const { return directory() + "/credentials"; }
  [[nodiscard]] std::vector<std::string> StoreSettings() const override {
    std::vector<std::string> settings = {"cold.endpoint=s3://" + server_.Endpoint(),
                                         "cold.password_file=" + Credentials()};
    settings.insert(settings.end(), encryption_.begin(), encryption_.end());
    return settings;
  }
  // From now on daemons encrypt.
  void Encrypt() {
    const std::string path = directory() + "/root";
    std::ofstream(path, std::ios::binary) << std::string(32, 'k');
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    encryption_ = {"disk.encryption=aes-256-gcm", "disk.root_key=" + path};
  }
  [[nodiscard]] size_t CountObjects() override { return server_.Names().size(); }
  // The output of kvtierctl at the other host.
  [[nodiscard]] std::string Ask(const std::vector<std::string>& words) {
    std::vector<std::string> all = {KvtierctlPath(), "--admin-socket", other().admin_socket()};
    all.insert(all.end(), words.begin(), words.end());
    return RunProgram(all).output;
  }

  S3Server server_;
  std::vector<std::string> encryption_;
};

TEST_F(ColdS3Test, WhatOneHostComputedAnotherServesByteForByte) {
  Encrypt();
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(Cold(other().admin_socket()).at("read_blocks").to_number<uint64_t>(), kBlocks);
  const std::string verified = Ask({"verify", "--tier", "cold"});
  EXPECT_NE(verified.find("verified 12 blocks"), std::string::npos) << verified;
  const std::string listed = Ask({"ls", "--tier", "cold", "--hashes"});
  EXPECT_EQ(std::ranges::count(listed, '\n'), kBlocks) << listed;
}

TEST_F(ColdS3Test, AServerThatStandsStillCostsMissesAndIsUsedAgainWhenItGoesOn) {
  WriteByFirstHost();
  StartOtherHost({"cold.lookup_deadline_ms=1000"});
  server_.StandStill(true);
  const ReplayReport computed = PlayOnOther(Prompt("shared", kBlocks / 2));
  EXPECT_EQ(computed.blocks.miss, kBlocks / 2);
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks / 2)).blocks.miss, 0u) << "local hits";
  server_.StandStill(false);
  ReadByOtherHostFrom(kBlocks / 2 + 1);
}

TEST_F(ColdS3Test, TruncatedAndDamagedObjectsAreMissesWithTheirReasons) {
  WriteByFirstHost();
  size_t damaged = 0;
  for (const std::string& name : server_.Names()) {
    std::string object = *server_.Find(name);
    object[11'000] ^= 1;
    if (++damaged % 2 == 0) object.resize(9000);
    server_.Set(name, object);
  }
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).wrong_blocks, 0u);
  EXPECT_GT(FailedReads("checksum_mismatch"), 0u);
}

TEST_F(ColdS3Test, AnErasureDeletesTheTenantsObjects) {
  Encrypt();
  WriteByFirstHost();
  server_.Set("kvtier/1/default2/other", "x");
  StartOtherHost();
  const std::string erased = Ask({"erase", "--tenant", "default", "--yes", "--json"});
  EXPECT_NE(erased.find("\"proven\":true"), std::string::npos) << erased;
  EXPECT_EQ(server_.Names(), std::vector<std::string>{"kvtier/1/default2/other"});
}

TEST_F(ColdS3Test, ClocksThatDifferAreSaidOnceWithTheDifference) {
  server_.SetClock(-5000);
  StartDaemon({}, Settings());
  size_t asked = 0;
  const auto asks_until_it_says = [&](const std::string& text) {
    return Eventually([&] {
      (void)Play(Prompt("new-" + std::to_string(++asked), 1));
      return Log().find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(asks_until_it_says("RequestTimeTooSkewed"));
  EXPECT_NE(Log().find(" s ahead of the store's"), std::string::npos) << Log();
  server_.SetClock(0);
  EXPECT_TRUE(asks_until_it_says("cold.back: "));
  const std::string log = Log();
  EXPECT_EQ(log.find("cold.away"), log.rfind("cold.away")) << log;
  EXPECT_EQ(daemon().Terminate(), 0);
}

// A real server, which tools/test-s3.sh starts. Its bucket is empty, and the environment has the
// credentials.
class RealS3Test : public TwoHostsTest {
 protected:
  void SetUp() override {
    TwoHostsTest::SetUp();
    if (endpoint_ == nullptr) GTEST_SKIP() << "no KVTIER_S3_ENDPOINT";
  }
  [[nodiscard]] std::vector<std::string> StoreSettings() const override {
    return {std::string("cold.endpoint=s3://") + endpoint_};
  }
  [[nodiscard]] size_t CountObjects() override {
    return Cold(daemon().admin_socket()).at("write_blocks").to_number<size_t>();
  }

  const char* const endpoint_ = std::getenv("KVTIER_S3_ENDPOINT");
};

TEST_F(RealS3Test, HostsShareABucketUntilItsObjectsAreErased) {
  WriteByFirstHost();
  StartOtherHost();
  const ReplayReport report = PlayOnOther(Prompt("shared", kBlocks));
  EXPECT_EQ(report.blocks.miss, 0u) << report.ToJson();
  EXPECT_EQ(report.wrong_blocks, 0u);
  EXPECT_EQ(Cold(other().admin_socket()).at("read_blocks").to_number<uint64_t>(), kBlocks);
  const ProgramResult erased =
      RunProgram({KvtierctlPath(), "--admin-socket", other().admin_socket(), "erase", "--tenant",
                  "default", "--yes", "--without-proof"});
  EXPECT_EQ(erased.exit_code, 0) << erased.output;
  StopOtherHost();
  StartOtherHost();
  EXPECT_EQ(PlayOnOther(Prompt("shared", kBlocks)).blocks.miss, kBlocks);
  EXPECT_EQ(Cold(other().admin_socket()).at("lookups").at("absent").to_number<uint64_t>(), 1u);
}

}  // namespace
}  // namespace kvtier
