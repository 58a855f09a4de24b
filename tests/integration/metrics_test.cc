// SPDX-License-Identifier: Apache-2.0
// The metrics page of a live daemon, and that alert rules and dashboard speak of its metrics.
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/fakes/http_get.h"
#include "tests/integration/harness/daemon_test.h"

namespace kvtier {
namespace {

constexpr const char* kMonitoring = KVTIER_SOURCE_DIRECTORY "/tools/monitoring";

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class MetricsTest : public DaemonTest {
 protected:
  // Samples by name and labels, as they stand on the page.
  using Samples = std::map<std::string, double>;

  std::string Scrape(const HttpHeaders& headers = {}) {
    const HttpReply reply = HttpGet(MetricsUrl() + "metrics", headers);
    EXPECT_EQ(reply.status, 200u) << reply.body;
    return reply.body;
  }
  Samples ScrapeSamples() {
    Samples samples;
    std::istringstream page(Scrape());
    for (std::string line; std::getline(page, line);) {
      if (line.starts_with('#')) continue;
      const size_t name_space = line.rfind(' ');
      samples[line.substr(0, name_space)] = std::stod(line.substr(name_space + 1));
    }
    return samples;
  }
  static double SumOf(const Samples& samples, const std::string& name) {
    double sum = 0;
    for (const auto& [series, value] : samples) {
      if (series == name || series.starts_with(name + "{")) sum += value;
    }
    return sum;
  }
  static std::set<std::string> SeriesOf(const Samples& samples) {
    std::set<std::string> series;
    for (const auto& [name, value] : samples) series.insert(name);
    return series;
  }
  // Without those that begin with a model's registration or a tenant's first block.
  static std::set<std::string> SeriesFromTheStart(const Samples& samples) {
    std::set<std::string> series = SeriesOf(samples);
    std::erase_if(series, [](const std::string& name) {
      return name.starts_with("kvtier_model_") || name.starts_with("kvtier_tenant_byte_seconds") ||
             name.starts_with("kvtier_tenant_pin");
    });
    return series;
  }
  // The names of a text that can only be metrics'.
  static std::set<std::string> MetricsNamedIn(const std::string& text) {
    const std::regex name("(kvtier|process)_[a-z_]+");
    return {std::sregex_token_iterator(text.begin(), text.end(), name), {}};
  }
  std::set<std::string> NamesOnThePage() {
    std::set<std::string> names;
    for (const auto& [series, value] : ScrapeSamples()) {
      names.insert(series.substr(0, series.find('{')));
    }
    return names;
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = directory() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  // Enough to fill every tier and to have some of it back.
  void MakeTraffic() {
    for (int i = 0; i < 24; ++i) (void)Play(Prompt(fmt::format("prompt {}", i), 40));
    for (const int again : {23, 20, 14}) (void)Play(Prompt(fmt::format("prompt {}", again), 40));
  }
};

TEST_F(MetricsTest, ThereIsNoPageUnlessAskedFor) {
  StartDaemon();
  EXPECT_EQ(ReadText(daemon().log_path()).find("http://"), std::string::npos);
}

TEST_F(MetricsTest, PromtoolFindsNothingToCorrect) {
  REQUIRE_PROGRAM("promtool");
  StartDaemon({}, {kMetricsSetting});
  MakeTraffic();
  const std::string page = WriteFile("metrics.txt", Scrape());
  const ProgramResult result = RunProgram({"sh", "-c", "promtool check metrics < " + page});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(result.output + result.errors, "");
}

TEST_F(MetricsTest, PageIsOpenMetricsWhereThatIsAccepted) {
  if (RunProgram({"/usr/bin/python3", "-c", "import prometheus_client"}).exit_code != 0) {
    GTEST_SKIP() << "python3-prometheus-client is not installed; tools/setup.sh --all does";
  }
  StartDaemon({}, {kMetricsSetting});
  MakeTraffic();
  const std::string page = WriteFile(
      "openmetrics.txt", Scrape({{"Accept", "application/openmetrics-text; version=1.0.0"}}));
  // The reference parser, which is strict.
  const ProgramResult result = RunProgram(
      {"/usr/bin/python3", "-c",
       "import sys\n"
       "from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n"
       "print(len(list(parse(open(sys.argv[1]).read()))))",
       page});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_GT(std::stoi("0" + result.output), 50);
}

TEST_F(MetricsTest, AllSeriesExistFromTheStart) {
  StartDaemon({}, {kMetricsSetting});
  const std::set<std::string> before = SeriesOf(ScrapeSamples());
  MakeTraffic();
  EXPECT_EQ(SeriesFromTheStart(ScrapeSamples()), before);
}

TEST_F(MetricsTest, WhatIsAskedOfAModelIsCountedUnderItsName) {
  StartDaemon({.pool_blocks = 64, .host_blocks = 128, .disk_blocks = 512}, {kMetricsSetting});
  MakeTraffic();
  const Samples samples = ScrapeSamples();
  for (const std::string counted : {"asked_blocks", "hit_blocks", "missed_blocks", "asked_tokens",
                                    "hit_tokens", "missed_tokens"}) {
    EXPECT_EQ(SumOf(samples, "kvtier_model_" + counted + "_total"),
              SumOf(samples, "kvtier_" + counted + "_total"))
        << counted;
  }
  EXPECT_GT(SumOf(samples, "kvtier_model_asked_blocks_total"), 0);
  EXPECT_EQ(SumOf(samples, "kvtier_model_pool_used_bytes"),
            samples.at("kvtier_tier_used_bytes{tier=\"pool\"}"));
  for (const auto& [series, value] : samples) {
    if (!series.starts_with("kvtier_model_")) continue;
    EXPECT_EQ(series.find("model=\"\""), std::string::npos) << series;
  }
}

TEST_F(MetricsTest, WhatIsAskedForIsHitOrMissed) {
  StartDaemon({.pool_blocks = 64, .host_blocks = 128, .disk_blocks = 512}, {kMetricsSetting});
  MakeTraffic();
  const Samples samples = ScrapeSamples();
  EXPECT_EQ(SumOf(samples, "kvtier_asked_blocks_total"), 27 * 40);
  EXPECT_GT(SumOf(samples, "kvtier_hit_blocks_total"), 0);
  for (const std::string unit : {"blocks", "tokens"}) {
    EXPECT_EQ(SumOf(samples, "kvtier_asked_" + unit + "_total"),
              SumOf(samples, "kvtier_hit_" + unit + "_total") +
                  SumOf(samples, "kvtier_missed_" + unit + "_total"))
        << unit;
  }
  EXPECT_EQ(SumOf(samples, "kvtier_asked_tokens_total"), 27 * 40 * kTestBlockTokens);
}

TEST_F(MetricsTest, TrafficShowsInCopiesQueuesAndTiers) {
  StartDaemon({.pool_blocks = 64, .host_blocks = 128, .disk_blocks = 512}, {kMetricsSetting});
  MakeTraffic();
  const Samples samples = ScrapeSamples();
  for (const char* direction : {"pool_to_host", "host_to_pool", "host_to_disk", "disk_to_host"}) {
    const std::string label = fmt::format("{{direction=\"{}\"}}", direction);
    EXPECT_GT(samples.at("kvtier_copied_bytes_total" + label), 0) << direction;
    EXPECT_GE(samples.at("kvtier_copying_seconds_total" + label), 0) << direction;
    EXPECT_EQ(samples.at("kvtier_queued_blocks" + label), 0) << direction << ": at rest";
  }
  for (const char* tier : {"pool", "host", "disk"}) {
    const std::string label = fmt::format("{{tier=\"{}\"}}", tier);
    EXPECT_GT(samples.at("kvtier_tier_blocks" + label), 0) << tier;
    EXPECT_LE(samples.at("kvtier_tier_used_bytes" + label),
              samples.at("kvtier_tier_capacity_bytes" + label));
  }
  EXPECT_GT(samples.at("kvtier_residence_seconds_count{tier=\"pool\"}"), 0);
  EXPECT_GT(samples.at("kvtier_reuse_gap_seconds_count"), 0);
}

TEST_F(MetricsTest, ProcessIsDescribedAsTheKernelSeesIt) {
  const auto before = static_cast<double>(std::time(nullptr));
  StartDaemon({}, {kMetricsSetting});
  const Samples samples = ScrapeSamples();
  // The kernel counts from a boot time that is known to about a second.
  EXPECT_NEAR(samples.at("process_start_time_seconds"), before, 30);
  EXPECT_GT(samples.at("process_resident_memory_bytes"), kMiB);
  EXPECT_GT(samples.at("process_cpu_seconds_total"), 0);
  EXPECT_GT(samples.at("process_open_fds"), 5);
}

// Where the directory is a file system in memory, that is nothing.
TEST_F(MetricsTest, WrittenBytesAreThoseThatTheKernelCountsForTheProcess) {
  StartDaemon({.pool_blocks = 64, .host_blocks = 128, .disk_blocks = 512}, {kMetricsSetting});
  MakeTraffic();
  const auto counted = [&] {
    const std::string io = ReadText(fmt::format("/proc/{}/io", daemon().pid()));
    const std::string name = "\nwrite_bytes: ";
    return std::stod(io.substr(io.find(name) + name.size()));
  };
  const double before = counted();
  const double shown = ScrapeSamples().at("kvtier_storage_written_bytes_total");
  EXPECT_GE(shown, before);
  EXPECT_LE(shown, counted());
}

// Small enough to be exact.
TEST_F(MetricsTest, InfiniteCacheWouldHaveMissedEachBlockOnce) {
  StartDaemon({.pool_blocks = 64, .host_blocks = 66, .disk_blocks = 0}, {kMetricsSetting});
  MakeTraffic();
  const Samples samples = ScrapeSamples();
  EXPECT_EQ(SumOf(samples, "kvtier_compulsory_missed_blocks_total"), 24 * 40);
  EXPECT_GT(SumOf(samples, "kvtier_missed_blocks_total"), 24 * 40);
}

TEST_F(MetricsTest, AlertRulesDoWhatTheirTestsSay) {
  REQUIRE_PROGRAM("promtool");
  const std::string rules = kMonitoring + std::string("/kvtier.rules.yml");
  const ProgramResult check = RunProgram({"promtool", "check", "rules", rules});
  EXPECT_EQ(check.exit_code, 0) << check.output << check.errors;
  const ProgramResult test = RunProgram(
      {"promtool", "test", "rules", kMonitoring + std::string("/kvtier.rules.test.yml")});
  EXPECT_EQ(test.exit_code, 0) << test.output << test.errors;
}

TEST_F(MetricsTest, EveryAlertIsTestedAndExplained) {
  const std::string rules = ReadText(kMonitoring + std::string("/kvtier.rules.yml"));
  const std::string tests = ReadText(kMonitoring + std::string("/kvtier.rules.test.yml"));
  const std::string manual = ReadText(KVTIER_SOURCE_DIRECTORY "/docs/METRICS.md");
  const std::regex alert("- alert: (\\w+)");
  int alerts = 0;
  for (std::sregex_iterator it(rules.begin(), rules.end(), alert), end; it != end; ++it, ++alerts) {
    const std::string name = (*it)[1];
    EXPECT_NE(tests.find("alertname: " + name), std::string::npos) << name;
    EXPECT_NE(manual.find("### " + name + "\n"), std::string::npos) << name;
  }
  EXPECT_GE(alerts, 8);
}

TEST_F(MetricsTest, RulesAndDashboardNameOnlyWhatExists) {
  StartDaemon({}, {kMetricsSetting});
  (void)Play(Prompt("a model has series when it is registered", 1));
  const std::set<std::string> names = NamesOnThePage();
  for (const char* file : {"kvtier.rules.yml", "kvtier.rules.test.yml", "kvtier-dashboard.json"}) {
    const auto named = MetricsNamedIn(ReadText(fmt::format("{}/{}", kMonitoring, file)));
    EXPECT_GT(named.size(), 5u) << file;
    for (const std::string& name : named) EXPECT_TRUE(names.contains(name)) << file << ": " << name;
  }
}

TEST_F(MetricsTest, RulesAndDashboardSelectOnlyLabelsThatExist) {
  StartDaemon({}, {kMetricsSetting});
  const std::string page = Scrape();
  const std::regex selector(
      R"re((reason|tier|direction|operation|state|repair|code)=~?\\?"([a-z_|]+))re");
  for (const char* file : {"kvtier.rules.yml", "kvtier.rules.test.yml", "kvtier-dashboard.json"}) {
    const std::string text = ReadText(fmt::format("{}/{}", kMonitoring, file));
    int selected = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), selector), end; it != end; ++it) {
      std::istringstream values((*it)[2]);
      for (std::string value; std::getline(values, value, '|'); ++selected) {
        const std::string label = fmt::format("{}=\"{}\"", (*it)[1].str(), value);
        EXPECT_NE(page.find(label), std::string::npos) << file << ": " << label;
      }
    }
    EXPECT_GT(selected, 0) << file;
  }
}

TEST_F(MetricsTest, EveryQueryOfTheDashboardIsPromQl) {
  REQUIRE_PROGRAM("promtool");
  const boost::json::value dashboard =
      boost::json::parse(ReadText(kMonitoring + std::string("/kvtier-dashboard.json")));
  std::string rules = "groups:\n  - name: dashboard\n    rules:\n";
  int queries = 0;
  for (const boost::json::value& panel : dashboard.at("panels").as_array()) {
    if (!panel.as_object().contains("targets")) continue;
    for (const boost::json::value& target : panel.at("targets").as_array()) {
      std::string query(target.at("expr").as_string());
      // Grafana's own words.
      query = std::regex_replace(query, std::regex("\\$__(rate_interval|range)"), "5m");
      query = std::regex_replace(query, std::regex("\\$instance"), ".*");
      rules +=
          fmt::format("      - record: dashboard:query{}\n        expr: '{}'\n", ++queries, query);
    }
  }
  EXPECT_GT(queries, 30);
  const ProgramResult check =
      RunProgram({"promtool", "check", "rules", WriteFile("dashboard.yml", rules)});
  EXPECT_EQ(check.exit_code, 0) << check.output << check.errors;
}

}  // namespace
}  // namespace kvtier
