// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/reload.h"

#include <gtest/gtest.h>

#include "daemon/config/config_check.h"
#include "daemon/config/config_loader.h"
#include "daemon/config/config_schema.h"

namespace kvtier {
namespace {

Config Parsed(const std::string& text) {
  Result<Config> config = ParseConfig(text, "test.toml", {});
  EXPECT_TRUE(config) << config.error().context;
  return std::move(config).value();
}

TEST(Reload, EqualConfigsDoNotDiffer) {
  const Config config = Parsed("[pool]\nbytes = \"2GiB\"\n[[tenant]]\nname = \"a\"\nuids = [1]\n");
  const ConfigDifferences differences = CompareConfigs(config, config);
  EXPECT_TRUE(differences.now.empty());
  EXPECT_TRUE(differences.restart.empty());
}

TEST(Reload, DifferenceNamesKeyValuesAndPlace) {
  const ConfigDifferences differences =
      CompareConfigs(Config{}, Parsed("[retention]\nextended_ttl = \"7d\"\n"));
  ASSERT_EQ(differences.now.size(), 1u);
  EXPECT_EQ(differences.now[0].key, "retention.extended_ttl");
  EXPECT_EQ(differences.now[0].running, "\"1d\"");
  EXPECT_EQ(differences.now[0].wanted, "\"7d\"");
  EXPECT_EQ(differences.now[0].place, "test.toml:2:16");
}

TEST(Reload, SizesAndPathsWaitForARestart) {
  const Config wanted = Parsed("[pool]\nbytes = \"2GiB\"\n[server]\nsocket = \"/tmp/s\"\n");
  const ConfigDifferences differences = CompareConfigs(Config{}, wanted);
  EXPECT_TRUE(differences.now.empty());
  ASSERT_EQ(differences.restart.size(), 2u);
  EXPECT_EQ(differences.restart[0].key, "server.socket");
  EXPECT_EQ(differences.restart[1].key, "pool.bytes");
  EXPECT_EQ(FormatConfig(TakeReloadable(Config{}, wanted)), FormatConfig(Config{}));
}

TEST(Reload, TakesWhatCanChangeAndLeavesTheRest) {
  const Config wanted = Parsed(
      "[pool]\nbytes = \"2GiB\"\n[log]\nlevel = \"debug\"\n[cache]\npool_clean_fraction = 0.25\n"
      "max_wait_ms = 7\n[disk]\nwrite_budget_per_day = \"1TB\"\n[drain]\ndeadline = \"5s\"\n");
  const Config taken = TakeReloadable(Config{}, wanted);
  EXPECT_EQ(taken.cache.pool_bytes, Config{}.cache.pool_bytes);
  EXPECT_EQ(taken.log.level, LogLevel::kDebug);
  EXPECT_EQ(taken.cache.pool_clean_fraction, 0.25);
  EXPECT_EQ(taken.cache.max_wait_ms, 7);
  EXPECT_EQ(taken.cache.disk_write_budget_bytes_per_day, 1'000'000'000'000u);
  EXPECT_EQ(taken.drain.deadline_ms, 5000);
  const ConfigDifferences left = CompareConfigs(taken, wanted);
  EXPECT_TRUE(left.now.empty());
  EXPECT_EQ(left.restart.size(), 1u);
}

TEST(Reload, TenantsAreTakenTogether) {
  const Config wanted = Parsed("[[tenant]]\nname = \"a\"\nuids = [1]\n");
  const ConfigDifferences differences = CompareConfigs(Config{}, wanted);
  ASSERT_EQ(differences.now.size(), 1u);
  EXPECT_EQ(differences.now[0].key, "[[tenant]]");
  EXPECT_EQ(differences.now[0].running, "none");
  EXPECT_EQ(TakeReloadable(Config{}, wanted).tenants.size(), 1u);
}

TEST(Reload, CapsAndTimesToLiveOfTenantsWithQuotasAreTaken) {
  const std::string tenant = "[[tenant]]\nname = \"a\"\nuids = [1]\n";
  const Config running =
      Parsed(tenant + "host_max_bytes = \"512MiB\"\nhost_reserved_bytes = \"64MiB\"\n");
  const Config wanted = Parsed(tenant + "extended_ttl = \"1h\"\n");
  const Config taken = TakeReloadable(running, wanted);
  ASSERT_EQ(taken.cache.tenants.size(), 1u);
  EXPECT_EQ(taken.cache.tenants[0].tiers[1].max_bytes, 0u);
  EXPECT_EQ(taken.cache.tenants[0].tiers[1].reserved_bytes, 64 * kMiB) << "until a restart";
  EXPECT_EQ(taken.cache.tenants[0].extended_ttl_ms, 3600 * 1000);
  const ConfigDifferences differences = CompareConfigs(running, wanted);
  ASSERT_EQ(differences.now.size(), 1u);
  EXPECT_EQ(differences.now[0].wanted,
            "a (uids [1], host_reserved_bytes \"64MiB\", extended_ttl \"1h\")");
  ASSERT_EQ(differences.restart.size(), 1u);
  EXPECT_EQ(differences.restart[0].key, "[[tenant]] \"a\" host_reserved_bytes");
  EXPECT_EQ(differences.restart[0].running, "\"64MiB\"");
  EXPECT_EQ(differences.restart[0].wanted, "none");
  // A change that was taken is taken: the next reload finds the same difference and no other.
  const ConfigDifferences again = CompareConfigs(taken, wanted);
  EXPECT_TRUE(again.now.empty());
  EXPECT_EQ(again.restart.size(), 1u);
}

TEST(Reload, FirstQuotaOfATenantWaitsForARestart) {
  const std::string tenant = "[[tenant]]\nname = \"a\"\nuids = [1]\n";
  const Config running = Parsed(tenant);
  const Config wanted = Parsed(tenant + "host_max_bytes = \"512MiB\"\n");
  EXPECT_TRUE(TakeReloadable(running, wanted).cache.tenants.empty());
  const ConfigDifferences differences = CompareConfigs(running, wanted);
  EXPECT_TRUE(differences.now.empty());
  ASSERT_EQ(differences.restart.size(), 1u);
  EXPECT_EQ(differences.restart[0].place, "test.toml:4:18");
}

TEST(Reload, ARemovedTenantLosesItsCapsAtOnceAndItsReservesWithARestart) {
  const Config running = Parsed(
      "[[tenant]]\nname = \"a\"\nuids = [1]\nhost_max_bytes = \"512MiB\"\n"
      "host_reserved_bytes = \"128MiB\"\nmax_age = \"1h\"\n");
  const Config wanted = Parsed("");
  const Config taken = TakeReloadable(running, wanted);
  EXPECT_TRUE(taken.tenants.empty());
  ASSERT_EQ(taken.cache.tenants.size(), 1u);
  EXPECT_EQ(taken.cache.tenants[0].name, "a");
  EXPECT_EQ(taken.cache.tenants[0].tiers[1].max_bytes, 0u);
  EXPECT_EQ(taken.cache.tenants[0].tiers[1].reserved_bytes, 128 * kMiB);
  EXPECT_EQ(taken.cache.tenants[0].max_age_ms, 0);
  const ConfigDifferences differences = CompareConfigs(running, wanted);
  ASSERT_EQ(differences.now.size(), 1u);
  EXPECT_EQ(differences.now[0].wanted, "none");
  ASSERT_EQ(differences.restart.size(), 1u);
  EXPECT_EQ(differences.restart[0].key, "[[tenant]] \"a\" host_reserved_bytes");
  EXPECT_EQ(differences.restart[0].running, "\"128MiB\"");
  EXPECT_EQ(differences.restart[0].wanted, "none");
  EXPECT_EQ(differences.restart[0].place, "(removed)");
  EXPECT_EQ(CompareConfigs(taken, wanted).restart.size(), 1u) << "as long as it stays";
  EXPECT_TRUE(CheckConfig(taken));
  const Config smaller = TakeReloadable(taken, Parsed("[host]\nbytes = \"128MiB\"\n"));
  EXPECT_FALSE(CheckConfig(smaller)) << "the reserve would leave nothing to others";
}

TEST(Reload, TierBelowWhatIsPinnedIsRefused) {
  const Config wanted = Parsed("[disk]\nbytes = \"1GiB\"\n");
  EXPECT_TRUE(CheckPinnedFit(wanted, 1023 * kMiB));
  EXPECT_FALSE(CheckPinnedFit(wanted, 1024 * kMiB)) << "superblocks take a part";
  const Status refused = CheckPinnedFit(wanted, 3 * kGiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "config_below_pinned");
  EXPECT_EQ(refused.error().context,
            "test.toml:2:9: disk.bytes 1GiB has room for 1023.0 MiB of blocks, less than the "
            "3.0 GiB that are pinned; unpin blocks (kvtierctl unpin) or ask for more");
}

TEST(Reload, WithoutADiskPinnedBlocksMustFitIntoHostMemory) {
  EXPECT_FALSE(CheckPinnedFit(Parsed("[host]\nbytes = \"64MiB\"\n"), 65 * kMiB));
  EXPECT_TRUE(CheckPinnedFit(Parsed("[host]\nbytes = \"64MiB\"\n"), 64 * kMiB));
}

TEST(Reload, TheCostOfARestartIsToldWithTheKey) {
  EXPECT_NE(CostOfRestart("pool.bytes").find("has room for"), std::string_view::npos);
  EXPECT_EQ(CostOfRestart("host.bytes"), "") << "a reload takes it";
  EXPECT_EQ(CostOfRestart("disk.directories"), "") << "drives come and go with their blocks";
  EXPECT_EQ(CostOfRestart("disk.bytes"), "") << "a tier that grows or shrinks keeps its blocks";
}

}  // namespace
}  // namespace kvtier
