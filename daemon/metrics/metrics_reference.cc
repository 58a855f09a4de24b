// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/metrics/metrics.h"

namespace kvtier {
namespace {

// A snapshot with one of everything that rows make a series for: the rows add samples to it as to
// any other, and so the document shows every label.
MetricsSnapshot OneOfEach() {
  MetricsSnapshot snapshot;
  snapshot.devices = {{.kind = "host"}};
  snapshot.gauges.devices.resize(2);  // a pair
  snapshot.attention.devices.emplace_back();
  // For its labels.
  snapshot.gauges.tenants.push_back({.quota = {.name = "its name"}});
  snapshot.gauges.usage.push_back({.tenant = "its name"});
  snapshot.models.push_back({.label = {"its name", "its name, or none"}});
  return snapshot;
}

// Their values are those of the machine's devices.
constexpr std::array<std::string_view, 5> kLabelsOfTheMachine = {"device", "kind", "name",
                                                                 "neighbour", "uuid"};

// By label, as the last row that has it lists them.
using LabelValues = std::map<std::string_view, std::vector<std::string>>;

// "`tier`: pool, host, disk; `reason`: ...". Leaves out values that `listed` has, and adds to it.
std::string LabelsOf(const MetricFamily& family, LabelValues* listed) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> labels;
  for (const MetricSample& sample : family.samples) {
    for (const auto& [name, value] : sample.labels) {
      if (name == "le" || name == "version") continue;
      auto found = std::ranges::find(labels, name, [](const auto& label) { return label.first; });
      if (found == labels.end()) found = labels.insert(labels.end(), {name, {}});
      if (std::ranges::find(kLabelsOfTheMachine, name) != kLabelsOfTheMachine.end()) continue;
      if (std::ranges::find(found->second, value) == found->second.end()) {
        found->second.push_back(value);
      }
    }
  }
  std::string text;
  for (auto& [name, values] : labels) {
    text += fmt::format("{}`{}`", text.empty() ? "" : "; ", name);
    if ((*listed)[name] == values) continue;
    text += fmt::format(": {}", fmt::join(values, ", "));
    (*listed)[name] = std::move(values);
  }
  return text;
}

// "`stats.misses.{}`"; the bars of its alternatives would end the table's cell.
std::string StatusPlace(std::string_view place) {
  if (place.empty()) return "";
  std::string text;
  for (const char c : place) text += c == '|' ? "," : std::string(1, c);
  return fmt::format("`{}`", text);
}

}  // namespace

std::string MetricsReferenceMarkdown() {
  const MetricsSnapshot snapshot = OneOfEach();
  const LoopFacts loop;
  const ProcessFacts process;
  std::string text;
  LabelValues listed;
  for (const MetricSection& section : MetricSections()) {
    text += fmt::format(
        "\n## {}\n\n| metric | labels | meaning | in `kvtierctl status` |\n|---|---|---|---|\n",
        section.title);
    for (const MetricRow& row : section.rows) {
      if (row.name.empty()) continue;
      MetricFamilies one;
      MetricFamily& family = one.Make(row.name, row.type, row.help);
      row.read({snapshot, loop, process}, family);
      const bool named = family.type == MetricType::kCounter || family.type == MetricType::kGauge;
      text += fmt::format("| `{}{}`{} | {} | {} | {} |\n", family.name, family.Suffix(),
                          named ? "" : fmt::format(" ({})", MetricTypeName(family.type)),
                          LabelsOf(family, &listed), family.help, StatusPlace(row.status));
    }
  }
  return text;
}

}  // namespace kvtier
