// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/metrics_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

TEST(MetricsText, CountersAreNamedAsEachFormatWants) {
  MetricFamilies families;
  families.Make("kvtier_copied_bytes", MetricType::kCounter, "Bytes copied.")
      .Add({{"direction", "down"}}, uint64_t{7});
  EXPECT_EQ(MetricsText(families, MetricsFormat::kPrometheus),
            "# HELP kvtier_copied_bytes_total Bytes copied.\n"
            "# TYPE kvtier_copied_bytes_total counter\n"
            "kvtier_copied_bytes_total{direction=\"down\"} 7\n");
  EXPECT_EQ(MetricsText(families, MetricsFormat::kOpenMetrics),
            "# HELP kvtier_copied_bytes Bytes copied.\n"
            "# TYPE kvtier_copied_bytes counter\n"
            "# UNIT kvtier_copied_bytes bytes\n"
            "kvtier_copied_bytes_total{direction=\"down\"} 7\n"
            "# EOF\n");
}

TEST(MetricsText, HistogramsAreCumulative) {
  static constexpr std::array<int64_t, 2> kBoundsUs = {250'000, 1'000'000};
  static constexpr std::array<uint64_t, 3> kCounts = {2, 0, 3};
  MetricFamilies families;
  families.Make("kvtier_gap_seconds", MetricType::kHistogram, "Gaps.")
      .AddHistogram({}, kBoundsUs, kCounts, 9'500'000);
  EXPECT_EQ(MetricsText(families, MetricsFormat::kPrometheus),
            "# HELP kvtier_gap_seconds Gaps.\n"
            "# TYPE kvtier_gap_seconds histogram\n"
            "kvtier_gap_seconds_bucket{le=\"0.25\"} 2\n"
            "kvtier_gap_seconds_bucket{le=\"1\"} 2\n"
            "kvtier_gap_seconds_bucket{le=\"+Inf\"} 5\n"
            "kvtier_gap_seconds_count 5\n"
            "kvtier_gap_seconds_sum 9.5\n");
}

TEST(MetricsText, WhatHasNoLimitIsInfinite) {
  MetricFamilies families;
  families.Make("kvtier_left_bytes", MetricType::kGauge, "Left.")
      .Add(std::numeric_limits<double>::infinity());
  EXPECT_NE(MetricsText(families, MetricsFormat::kPrometheus).find("kvtier_left_bytes +Inf\n"),
            std::string::npos);
}

TEST(MetricsText, LabelValuesAreEscaped) {
  MetricFamilies families;
  families.Make("kvtier_odd", MetricType::kGauge, "Odd.").Add({{"name", "a\"b\\c\nd"}}, 1.0);
  EXPECT_NE(MetricsText(families, MetricsFormat::kPrometheus).find(R"({name="a\"b\\c\nd"} 1)"),
            std::string::npos);
}

TEST(MetricsText, FormatIsTheOneThatIsAccepted) {
  EXPECT_EQ(FormatFor(""), MetricsFormat::kPrometheus);
  EXPECT_EQ(FormatFor("text/html, */*"), MetricsFormat::kPrometheus);
  EXPECT_EQ(FormatFor("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            MetricsFormat::kOpenMetrics);
}

TEST(Metrics, EveryFamilyIsNamedOnceAndExplained) {
  MetricsSnapshot snapshot;
  snapshot.devices = {{.kind = "host"}};
  snapshot.gauges.tenants.emplace_back();
  snapshot.gauges.usage.emplace_back();
  snapshot.models.emplace_back();
  snapshot.devices.emplace_back();
  snapshot.gauges.devices.resize(2);
  snapshot.attention.devices.resize(2);
  const MetricFamilies families = MetricsOf(snapshot, {}, {});
  std::set<std::string> names;
  for (const MetricFamily& family : families.all()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_TRUE(family.name.starts_with("kvtier_") || family.name.starts_with("process_"));
    EXPECT_TRUE(family.help.ends_with('.')) << family.name;
    EXPECT_FALSE(family.samples.empty()) << family.name;
  }
}

TEST(Metrics, AttentionThatWaitsForMemoryIsNotReady) {
  MetricsSnapshot snapshot;
  snapshot.attention.devices = {{.state = AttentionState::kWaiting}};
  const auto page = [&snapshot] {
    return MetricsText(MetricsOf(snapshot, {}, {}), MetricsFormat::kPrometheus);
  };
  EXPECT_NE(page().find("\nkvtier_attention_ready 1\n"), std::string::npos) << "no pool yet";
  snapshot.attention.devices.front().self_test.lacks_memory = true;
  EXPECT_NE(page().find("\nkvtier_attention_ready 0\n"), std::string::npos);
}

TEST(Metrics, DevicesAreToldApartByTheirPosition) {
  MetricsSnapshot snapshot;
  snapshot.devices = {{.kind = "cuda", .name = "H200", .uuid = "GPU-1"}, {.kind = "host"}};
  snapshot.gauges.devices = {{.pool_capacity_bytes = 10, .pool_used_bytes = 8}, {5, 5}};
  snapshot.attention.devices = {{.state = AttentionState::kReady, .calls = 7}, {.calls = 4}};
  PoolGauges pool{.device = DeviceIndex(1), .block_bytes = 3, .blocks = 4, .free = 3};
  snapshot.gauges.pools.push_back(pool);
  const std::string page = MetricsText(MetricsOf(snapshot, {}, {}), MetricsFormat::kPrometheus);
  for (const char* line :
       {R"(kvtier_device_info{device="0",kind="cuda",name="H200",uuid="GPU-1"} 1)",
        R"(kvtier_device_pool_capacity_bytes{device="0"} 10)",
        R"(kvtier_device_pool_allocated_bytes{device="1"} 5)",
        R"(kvtier_device_pool_used_bytes{device="0"} 0)",
        R"(kvtier_device_pool_used_bytes{device="1"} 3)",
        R"(kvtier_device_pool_blocks{device="1"} 1)",
        R"(kvtier_device_attention_ready{device="0"} 1)",
        R"(kvtier_device_attention_ready{device="1"} 0)",
        R"(kvtier_device_attention_calls_total{device="1"} 4)", "kvtier_attention_calls_total 11",
        "kvtier_attention_ready 0"}) {
    EXPECT_NE(page.find("\n" + std::string(line) + "\n"), std::string::npos) << line;
  }
}

TEST(Metrics, TenantsWithQuotasAreNamedByTier) {
  TenantGauges tenant{.quota = {.name = "chat"}, .used_bytes = {1, 2, 3}};
  tenant.quota.tiers[1] = {.max_bytes = 20, .reserved_bytes = 10};
  MetricsSnapshot snapshot;
  snapshot.gauges.tenants = {tenant};
  const std::string page = MetricsText(MetricsOf(snapshot, {}, {}), MetricsFormat::kPrometheus);
  for (const char* line : {"kvtier_tenant_used_bytes{tenant=\"chat\",tier=\"disk\"} 3\n",
                           "kvtier_tenant_cap_bytes{tenant=\"chat\",tier=\"host\"} 20\n",
                           "kvtier_tenant_cap_bytes{tenant=\"chat\",tier=\"pool\"} +Inf\n",
                           "kvtier_tenant_reserved_bytes{tenant=\"chat\",tier=\"host\"} 10\n"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

TEST(Metrics, ModelsAreNamedByTheirClientsAndEscaped) {
  CacheStats stats;
  stats.CountHit(NamespaceId(0), Tier::kHost, 16);
  stats.CountMisses(NamespaceId(0), MissReason::kUnknown, 2, 16);
  MetricsSnapshot snapshot;
  snapshot.models = {
      {.label = {"chat", "a\"} 1 # {x=\""}, .asked = stats.of_namespaces[0], .pool_used_bytes = 7},
      {.label = {"chat", ""}}};
  const std::string page = MetricsText(MetricsOf(snapshot, {}, {}), MetricsFormat::kPrometheus);
  const std::string model = R"({tenant="chat",model="a\"} 1 # {x=\"")";
  for (const std::string& line :
       {"kvtier_model_asked_blocks_total" + model + "} 3",
        "kvtier_model_hit_blocks_total" + model + ",tier=\"host\"} 1",
        "kvtier_model_hit_tokens_total" + model + ",tier=\"host\"} 16",
        "kvtier_model_missed_tokens_total" + model + "} 32",
        "kvtier_model_pool_used_bytes" + model + "} 7",
        std::string(R"(kvtier_model_asked_blocks_total{tenant="chat",model=""} 0)")}) {
    EXPECT_NE(page.find("\n" + line + "\n"), std::string::npos) << line;
  }
}

TEST(Metrics, WriteBudgetWithoutLimitIsInfinite) {
  MetricsSnapshot snapshot;
  snapshot.gauges.write_budget_left_bytes = UINT64_MAX;
  const std::string page = MetricsText(MetricsOf(snapshot, {}, {}), MetricsFormat::kPrometheus);
  EXPECT_NE(page.find("\nkvtier_write_budget_bytes +Inf\n"), std::string::npos);
  EXPECT_NE(page.find("\nkvtier_write_budget_left_bytes +Inf\n"), std::string::npos);
}

TEST(Metrics, ReferenceInTheDocumentationIsUpToDate) {
  std::ifstream file(KVTIER_SOURCE_DIR "/docs/METRICS.md");
  std::ostringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  const size_t tables = page.find("\n## ");
  EXPECT_EQ(page.substr(tables, page.find("\n## Alerts\n") - tables), MetricsReferenceMarkdown())
      << "`kvtierd --print-metrics-reference` prints the page from its first section to the alerts";
}

}  // namespace
}  // namespace kvtier
