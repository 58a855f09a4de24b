// SPDX-License-Identifier: Apache-2.0
// The library for clusters by itself, over one that tools/test-cluster.sh starts: questions and
// deletions that two daemons seldom come to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "daemon/cold/loaded_store.h"
#include "tests/integration/harness/program.h"

namespace kvtier {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int64_t kTimeoutMs = 60'000;
constexpr int64_t kTtlS = 7200;

class ClusterStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const cluster = std::getenv("KVTIER_TEST_CLUSTER");
    if (cluster == nullptr) GTEST_SKIP() << "run by tools/test-cluster.sh";
    const auto directory = std::filesystem::path(KvtierdPath()).parent_path().parent_path();
    auto opened = LoadedStore::Open({.library = directory / "lib/kvtier-cold-rados.so",
                                     .endpoint = "kvtier@" + std::string(cluster) + "/ceph.conf",
                                     .max_bytes_in_flight = 64 * kMiB},
                                    &loop_);
    ASSERT_TRUE(opened) << opened.error().ToString();
    store_ = *std::move(opened);
  }
  // Runs the loop until the call has ended.
  template <typename Answer, typename Begin>
  Answer Await(Begin begin) {
    std::optional<Answer> answer;
    begin([&](Answer given) { answer.emplace(std::move(given)); });
    loop_.RunUntil([&] { return answer.has_value(); });
    return *std::move(answer);
  }
  static std::string Name(const std::string& tenant, const std::string& model, int number) {
    return "kvtier/1/" + tenant + "/" + model + "/" + std::to_string(number);
  }
  static std::vector<std::string> Names(const std::string& tenant, const std::string& model,
                                        int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(Name(tenant, model, i));
    return names;
  }
  void Put(const std::vector<std::string>& names) {
    size_t ended = 0;
    const ColdBytes bytes = std::make_shared<const std::vector<std::byte>>(100);
    for (const std::string& name : names) {
      store_->Put(name, bytes, kTtlS, kTimeoutMs, [&](const Status& status) {
        EXPECT_TRUE(status);
        ++ended;
      });
    }
    loop_.RunUntil([&] { return ended == names.size(); });
  }
  std::vector<bool> Ask(const std::vector<std::string>& names, ColdAsk ask) {
    const auto answer = Await<Result<std::vector<bool>>>(
        [&](auto done) { store_->Exists(names, ask, kTimeoutMs, done); });
    EXPECT_TRUE(answer);
    return answer.value_or(std::vector<bool>());
  }
  // How many calls it took.
  int DeleteAll(const std::string& tenant) {
    uint64_t cursor = 0;
    for (int calls = 1; calls < 1000; ++calls) {
      const auto next = Await<Result<uint64_t>>([&](auto done) {
        store_->DeleteSome("kvtier/1/" + tenant + "/", cursor, kTimeoutMs, done);
      });
      EXPECT_TRUE(next);
      cursor = next.value_or(0);
      if (cursor == 0) return calls;
    }
    ADD_FAILURE() << "there is no end";
    return 0;
  }

  EventLoop loop_;
  std::unique_ptr<LoadedStore> store_;
};

TEST_F(ClusterStoreTest, APrefixEndsAtItsFirstGapAndSingleObjectsDoNot) {
  std::vector<std::string> names = Names("asked", "model", 40);
  std::vector<std::string> put = names;
  put.erase(put.begin() + 1);
  Put(put);
  const std::vector<bool> each = Ask(names, ColdAsk::kEach);
  ASSERT_EQ(each.size(), 40u);
  EXPECT_EQ(std::count(each.begin(), each.end(), true), 39);
  EXPECT_FALSE(each[1]);
  const std::vector<bool> prefix = Ask(names, ColdAsk::kPrefix);
  EXPECT_TRUE(prefix[0]);
  EXPECT_FALSE(prefix[1]);
  EXPECT_FALSE(prefix[39]) << "not asked for at all";
}

TEST_F(ClusterStoreTest, ATenantsObjectsAreDeletedInPartsAndCanBeWrittenAgain) {
  const std::vector<std::string> many = Names("erased", "a", 300);
  const std::vector<std::string> few = Names("erased", "b", 3);
  const std::vector<std::string> others = Names("erased2", "a", 2);
  Put(many);
  Put(few);
  Put(others);
  EXPECT_GE(DeleteAll("erased"), 4) << "two parts of one index, and one of the other";
  EXPECT_THAT(Ask(many, ColdAsk::kEach), Each(false));
  EXPECT_THAT(Ask(few, ColdAsk::kEach), Each(false));
  EXPECT_THAT(Ask(others, ColdAsk::kEach), ElementsAre(true, true));
  Put(few);
  EXPECT_THAT(Ask(few, ColdAsk::kEach), Each(true));
  EXPECT_EQ(DeleteAll("nothing"), 1);
}

}  // namespace
}  // namespace kvtier
