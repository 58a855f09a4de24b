// SPDX-License-Identifier: Apache-2.0
// kvtierctl usage: each tenant's share of the tiers, in bytes times time, and its pins.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/units.h"
#include "tiers/types/cache_options.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

double ByteSeconds(JsonView tenant, std::string_view tier) {
  return tenant[tier]["byte_seconds"].Number();
}

// The rows of one tenant, or of all.
json::array ChosenRows(JsonView usage, const std::string& tenant) {
  json::array chosen;
  usage.ForEach([&](JsonView row) {
    if (tenant.empty() || row["tenant"].Text() == tenant) chosen.push_back(*row.value());
  });
  return chosen;
}

std::string Share(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

// `all`: also the tenants that are not shown, of which shares are.
std::string TierTable(JsonView rows, JsonView all) {
  using enum Table::Align;
  Table table({{"tenant", kLeft}, {"tier", kLeft}, {"holds"}, {"GiB x hours"}, {"share"}});
  rows.ForEach([&](JsonView row) {
    std::string name = row["tenant"].Text();
    if (name.empty()) name = "(others)";
    for (const std::string_view tier : kTierNames) {
      const double byte_seconds = ByteSeconds(row, tier);
      double sum = 0;
      all.ForEach([&](JsonView each) { sum += ByteSeconds(each, tier); });
      if (byte_seconds == 0 && row[tier]["held_bytes"].Count() == 0) continue;
      table.AddRow({name, std::string(tier), FormatByteSize(row[tier]["held_bytes"].Count()),
                    fmt::format("{:.3f}", byte_seconds / static_cast<double>(kGiB) / 3600),
                    Share(byte_seconds, sum)});
      name.clear();
    }
  });
  return table.Render();
}

std::string PinTable(JsonView rows) {
  using enum Table::Align;
  Table table({{"tenant", kLeft}, {"pinned"}, {"granted"}, {"refused"}, {"ended for space"}});
  bool any = false;
  rows.ForEach([&](JsonView row) {
    const JsonView pins = row["pins"];
    const uint64_t granted = pins["granted"].Count();
    const uint64_t refused = pins["refused"].Count();
    if (granted + refused + row["pinned_bytes"].Count() == 0) return;
    any = true;
    table.AddRow({row["tenant"].Text(), FormatByteSize(row["pinned_bytes"].Count()),
                  FormatCount(granted), FormatCount(refused),
                  FormatCount(pins["ended_for_space"].Count())});
  });
  return any ? "\n" + table.Render() : std::string();
}

void Usage(const std::string& tenant, CommandContext* context) {
  const auto reply = Ask(*context, "status");
  if (!reply) return context->Fail(reply.error());
  const JsonView status(&*reply);
  const JsonView all = status["usage"];
  const json::value rows = ChosenRows(all, tenant);
  if (rows.as_array().empty() && !tenant.empty()) {
    const auto unknown = MakeError(ErrorCode::kNotFound, "unknown_tenant",
                                   fmt::format("\"{}\" has had nothing since the start", tenant));
    return context->Fail(unknown.value());
  }
  const double uptime_s = status["uptime_s"].Number();
  if (context->json) {
    return context->Print(json::serialize(
        json::object{{"schema", "kvtier.usage/1"}, {"uptime_s", uptime_s}, {"tenants", rows}}));
  }
  fmt::print("since {} ago\n{}{}", FormatElapsed(static_cast<int64_t>(uptime_s * 1000)),
             TierTable(JsonView(&rows), all), PinTable(JsonView(&rows)));
}

}  // namespace

void AddUsageCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command =
      app->add_subcommand("usage", "Show what each tenant has had of the tiers, and its pins.");
  const auto tenant = std::make_shared<std::string>();
  command->add_option("--tenant", *tenant, "Only this tenant.")->type_name("TENANT");
  command->footer(
      "Counts from the daemon's start; docs/OPERATIONS.md has the metric that sums up over\n"
      "restarts. Ends with 4 if the tenant has had nothing.");
  command->callback([tenant, context] { Usage(*tenant, context); });
}

}  // namespace kvtier
