// SPDX-License-Identifier: Apache-2.0
#include "tools/kvtierctl/status.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>
#include <vector>

#include "base/units.h"
#include "tiers/types/cache_options.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/support/short_names.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

constexpr size_t kLongestName = 20;
constexpr size_t kLongestModel = 22;
// More would push what stands before them off the screen; JSON lists all.
constexpr size_t kMostSessions = 10;

std::string Share(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.0f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string Cut(const std::string& text, size_t length) {
  return text.size() <= length ? text : text.substr(0, length - 2) + "..";
}

std::string JoinedTexts(JsonView array) {
  std::string text;
  array.ForEach([&text](JsonView element) { text += (text.empty() ? "" : ", ") + element.Text(); });
  return text;
}

std::string Heading(JsonView status, const Terminal& terminal) {
  const std::string state = status["state"].Text();
  const TextStyle style = state == "serving" ? TextStyle::kGood : TextStyle::kWarning;
  return fmt::format("kvtierd {}  {}  pid {}  up {}\n", status["version"].Text(),
                     terminal.Style(state, style), status["pid"].Count(),
                     FormatElapsed(static_cast<int64_t>(status["uptime_s"].Number() * 1000)));
}

// The disk tier's kind, so that one need not guess which engine was chosen.
std::string DiskKind(JsonView disk) {
  if (!disk["enabled"].IsTrue()) return disk["degraded"].IsTrue() ? "not to be had" : "none";
  const std::string engines = JoinedTexts(disk["engines"]);
  return disk["degraded"].IsTrue() ? engines + ", degraded" : engines;
}

std::string DeviceText(JsonView device) {
  const std::string kind = device["kind"].Text();
  if (kind != "cuda") return kind;
  return Cut(fmt::format("cuda:{} {}", device["ordinal"].Count(), device["name"].Text()),
             kLongestName);
}

uint64_t ColdQuestions(JsonView cold) {
  uint64_t asked = 0;
  for (const char* answer : {"found", "absent", "late", "failed", "skipped"}) {
    asked += cold["lookups"][answer].Count();
  }
  return asked;
}

// Empty for a tier that was never used.
std::string StoreKind(JsonView cold) {
  const bool available = cold["available"].Count() == 1;
  if (!available && ColdQuestions(cold) == 0) return {};
  return available ? "shared store" : "shared store, away";
}

std::string TierTable(JsonView status) {
  using enum Table::Align;
  Table table(
      {{"tier", kLeft}, {"capacity"}, {"used"}, {"full"}, {"blocks"}, {"hits"}, {"engine", kLeft}});
  const JsonView hits = status["stats"]["blocks"];
  // They come by way of the disk's tier, and are none of the drive's.
  const uint64_t cold_hits = hits["cold"].Count();
  const auto add = [&](const std::string& name, std::string engine) {
    const JsonView tier = status["tiers"][name];
    const uint64_t capacity = tier["capacity_bytes"].Count();
    const uint64_t used = tier["used_bytes"].Count();
    table.AddRow({name, FormatByteSize(capacity), FormatByteSize(used), Share(used, capacity),
                  FormatCompactCount(tier["blocks"].Count()),
                  FormatCompactCount(hits[name].Count() - (name == "disk" ? cold_hits : 0)),
                  std::move(engine)});
  };
  const JsonView host = status["tiers"]["host"];
  const bool growing = host["ready_bytes"].Count() < host["capacity_bytes"].Count();
  int devices = 0;
  status["devices"].ForEach([&devices](JsonView) { ++devices; });
  add("pool", devices > 1 ? fmt::format("{} devices", devices) : DeviceText(status["device"]));
  add("host", growing ? FormatByteSize(host["ready_bytes"].Count()) + " ready" : "memory");
  add("disk", DiskKind(status["disk"]));
  if (const std::string store = StoreKind(status["cold"]); !store.empty()) {
    table.AddRow({"cold", "-", "-", "-", "-", FormatCompactCount(cold_hits), store});
  }
  return table.Render();
}

std::vector<std::string> StatesOf(JsonView devices) {
  std::vector<std::string> states;
  devices.ForEach([&states](JsonView device) { states.push_back(device["state"].Text()); });
  return states;
}

// A table of devices only where there are several: the table of tiers names a single one.
std::string DeviceTable(JsonView status) {
  using enum Table::Align;
  size_t count = 0;
  status["devices"].ForEach([&count](JsonView) { ++count; });
  if (count < 2) return {};
  std::vector<std::string> attention = StatesOf(status["kernels"]["devices"]);
  attention.resize(count, "-");
  Table table({{"device"},
               {"is", kLeft},
               {"capacity"},
               {"pools"},
               {"blocks"},
               {"full"},
               {"attention", kLeft}});
  size_t row = 0;
  status["devices"].ForEach([&](JsonView device) {
    const uint64_t capacity = device["pool_capacity_bytes"].Count();
    table.AddRow({std::to_string(row), DeviceText(device), FormatByteSize(capacity),
                  FormatByteSize(device["pool_used_bytes"].Count()),
                  FormatCompactCount(device["blocks"].Count()),
                  Share(device["used_bytes"].Count(), capacity), attention[row]});
    ++row;
  });
  const JsonView stats = status["stats"];
  return "\n" + table.Render() +
         fmt::format("loaded from other pools and engines: {} blocks, {}\n",
                     FormatCount(stats["neighbour_blocks"].Count()),
                     FormatByteSize(stats["neighbour_bytes"].Count()));
}

std::string PoolTable(JsonView pools, uint64_t unlisted, bool several_devices) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {{"pool of", kLeft}, {"block"},  {"blocks"}, {"free"},
                                        {"private"},        {"in use"}, {"cached"}};
  if (several_devices) columns.push_back({"device"});
  Table table(columns);
  ShortNames names(kLongestModel);
  bool any = false;
  pools.ForEach([&](JsonView pool) {
    any = true;
    const std::string model = pool["model_name"].Text();
    const std::string name = model.empty() ? pool["model"].Text() : model;
    std::vector<std::string> row = {
        names.Of(pool["tenant"].Text() + "/" + name),
        FormatByteSize(pool["block_bytes"].Count()),
        FormatCompactCount(pool["blocks"].Count()),
        FormatCompactCount(pool["free"].Count()),
        FormatCompactCount(pool["private"].Count()),
        FormatCompactCount(pool["referenced"].Count()),
        FormatCompactCount(pool["cached"].Count()),
    };
    if (several_devices) row.push_back(std::to_string(pool["device"].Count()));
    table.AddRow(std::move(row));
  });
  if (!any) return {};
  return "\n" + table.Render() + (unlisted > 0 ? fmt::format("and {} more\n", unlisted) : "");
}

std::string SizeOr(uint64_t bytes, std::string_view none) {
  return bytes == 0 ? std::string(none) : FormatByteSize(bytes);
}

// For tenants with quotas: a row for each tier in which they have any, or any blocks.
std::string TenantTable(JsonView tenants) {
  using enum Table::Align;
  Table table({{"tenant", kLeft}, {"tier", kLeft}, {"used"}, {"cap"}, {"full"}, {"reserved"}});
  bool any = false;
  tenants.ForEach([&](JsonView tenant) {
    std::string name = Cut(tenant["name"].Text(), kLongestName);
    for (const std::string_view tier : kTierNames) {
      const uint64_t used = tenant[tier]["used_bytes"].Count();
      const uint64_t cap = tenant[tier]["max_bytes"].Count();
      const uint64_t reserved = tenant[tier]["reserved_bytes"].Count();
      if (used + cap + reserved == 0) continue;
      any = true;
      table.AddRow({name, std::string(tier), FormatByteSize(used), SizeOr(cap, "none"),
                    Share(used, cap), SizeOr(reserved, "-")});
      name.clear();
    }
  });
  return any ? "\n" + table.Render() : std::string();
}

// Engines' memory that outlives them, or that they have left there.
std::string KeptMemoryTable(JsonView kept_memory) {
  using enum Table::Align;
  Table table({{"kept memory", kLeft}, {"size"}, {"device"}, {"owner", kLeft}});
  bool any = false;
  const auto keep_for_ms = static_cast<int64_t>(kept_memory["keep_for_ms"].Count());
  kept_memory["list"].ForEach([&](JsonView kept) {
    any = true;
    const std::string device = kept["device"].Text();
    const auto waiting_ms = static_cast<int64_t>(kept["waiting_ms"].Count());
    table.AddRow({Cut(kept["tenant"].Text() + "/" + kept["name"].Text(), kLongestName),
                  FormatByteSize(kept["bytes"].Count()),
                  device.empty() ? std::to_string(kept["device"].Count()) : device,
                  kept["waiting"].IsTrue()
                      ? fmt::format("none: waiting {} of {}", FormatElapsed(waiting_ms),
                                    FormatElapsed(keep_for_ms))
                      : fmt::format("pid {}", kept["owner_pid"].Count())});
  });
  return any ? "\n" + table.Render() : std::string();
}

std::string SessionTable(JsonView sessions) {
  using enum Table::Align;
  Table table(
      {{"session"}, {"client", kLeft}, {"pid"}, {"uid"}, {"blocks held"}, {"tenant", kLeft}});
  size_t listed = 0;
  sessions["list"].ForEach([&](JsonView session) {
    if (++listed > kMostSessions) return;
    table.AddRow({std::to_string(session["id"].Count()),
                  Cut(session["client"].Text(), kLongestName),
                  std::to_string(session["pid"].Count()), std::to_string(session["uid"].Count()),
                  FormatCompactCount(session["references"].Count()),
                  Cut(session["tenant"].Text(), kLongestName)});
  });
  if (listed == 0) return {};
  std::string text = "\n" + table.Render();
  if (listed > kMostSessions) {
    text += fmt::format("and {} more\n", sessions["count"].Count() - kMostSessions);
  }
  return text;
}

// The memory that outlives the daemon, its holder and until when.
std::string RestartText(JsonView restart) {
  const std::string holder = restart["holder"].Text();
  if (holder.empty()) return {};
  if (holder == "none") {
    return fmt::format("\nover a restart: nothing in memory is kept\n  {}\n",
                       restart["reason"].Text());
  }
  return fmt::format("\nover a restart: {} kept by {} (pid {})\n  until {}\n",
                     FormatByteSize(restart["bytes"][holder].Count()), holder,
                     restart["pid"].Count(), restart["until"].Text());
}

// "unknown 200, checksum_mismatch 39": the reasons that there were, the most frequent first.
std::string ReasonsText(JsonView counts) {
  const boost::json::object* const reasons = counts.object();
  if (reasons == nullptr) return {};
  std::vector<std::pair<uint64_t, std::string>> seen;
  for (const auto& [reason, value] : *reasons) {
    if (const uint64_t count = JsonView(&value).Count(); count > 0)
      seen.emplace_back(count, reason);
  }
  std::ranges::stable_sort(seen, std::ranges::greater(),
                           [](const auto& reason) { return reason.first; });
  std::string text;
  for (const auto& [count, reason] : seen) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", reason, FormatCount(count));
  }
  return text;
}

// Why blocks that were asked for were not served; nothing if all were.
std::string MissesText(JsonView stats) {
  std::string text;
  if (const std::string missed = ReasonsText(stats["misses"]); !missed.empty()) {
    text += fmt::format("missed: {}\n", missed);
  }
  if (const std::string declined = ReasonsText(stats["declined"]); !declined.empty()) {
    text += fmt::format("declined: {}\n", declined);
  }
  return text;
}

std::string Activity(JsonView status) {
  const JsonView stats = status["stats"];
  const JsonView asked = stats["blocks"];
  const JsonView in_flight = status["in_flight"];
  const JsonView unusable = status["unusable_blocks"];
  const JsonView declined_for = stats["declined"];
  const uint64_t declined =
      declined_for["slower_than_computing"].Count() + declined_for["after_deadline"].Count();
  const uint64_t hits = asked["asked"].Count() - asked["miss"].Count() - declined;
  return fmt::format(
      "\nsessions {}  shared blocks in use {}  pinned {}  not yet on disk {}  unusable {}\n"
      "asked {} blocks, {} hit  misses {}  declined {}\n{}"
      "in flight: loads {}  offloads {}  disk reads {}  disk writes {}  waiting {}\n",
      status["sessions"]["count"].Count(), FormatCount(status["references"].Count()),
      FormatCount(status["pinned_blocks"].Count()),
      FormatCount(status["unpersisted_blocks"].Count()),
      FormatCount(unusable["pool"].Count() + unusable["host"].Count() + unusable["disk"].Count()),
      FormatCount(asked["asked"].Count()), Share(hits, asked["asked"].Count()),
      FormatCount(asked["miss"].Count()), FormatCount(declined), MissesText(stats),
      in_flight["loads"].Count(), in_flight["offloads"].Count(), in_flight["disk_reads"].Count(),
      in_flight["disk_writes"].Count(), in_flight["acquires_waiting"].Count());
}

// Nothing of a tier that was never used.
std::string ColdText(JsonView cold, JsonView hits) {
  const JsonView lookups = cold["lookups"];
  const uint64_t asked = ColdQuestions(cold);
  const bool available = cold["available"].Count() == 1;
  if (!available && asked == 0) return {};
  return fmt::format("cold store {}: found {} of {}, late {}  hits {} blocks  wrote {}\n",
                     available ? "in use" : "away", FormatCount(lookups["found"].Count()),
                     FormatCount(asked), FormatCount(lookups["late"].Count()),
                     FormatCount(hits.Count()), FormatCount(cold["write_blocks"].Count()));
}

std::string KernelsText(JsonView kernels) {
  if (kernels["state"].Text() != "ready") return {};
  return fmt::format("kernels: {}{}{}, self-test passed ({} cases)  calls {}  in flight {}\n",
                     kernels["engine"].Text(), kernels["library_version"].Text().empty() ? "" : " ",
                     kernels["library_version"].Text(), kernels["self_test"]["cases"].Count(),
                     FormatCompactCount(kernels["calls"].Count()), kernels["in_flight"].Count());
}

// Tells how full each of several drives is.
std::string DrivesText(JsonView disk) {
  std::string text;
  int drives = 0;
  disk["drives"].ForEach([&](JsonView drive) {
    ++drives;
    text += fmt::format("drive {}: {}, {} of {}\n", drive["directory"].Text(),
                        drive["state"].Text(), FormatByteSize(drive["used_bytes"].Count()),
                        FormatByteSize(drive["capacity_bytes"].Count()));
  });
  return drives > 1 ? text : std::string();
}

// Problems that an administrator should look into.
std::string Troubles(JsonView status, const Terminal& terminal) {
  std::string text;
  const auto add = [&](const std::string& line) {
    text += terminal.Style("! " + line, TextStyle::kWarning) + "\n";
  };
  const JsonView disk = status["disk"];
  disk["notes"].ForEach([&add](JsonView note) { add(note.Text()); });
  disk["drives"].ForEach([&add](JsonView drive) {
    if (drive["state"].Text() == "serving") return;
    add(fmt::format("drive {} {}: {}", drive["directory"].Text(),
                    drive["state"].Text() == "failed" ? "failed" : "was left out",
                    drive["why"].Text()));
  });
  if (const uint64_t away = disk["drives_away"].Count(); away > 0) {
    add(fmt::format("drives of the disk tier that are not there: {}", away));
  }
  if (disk["index"]["rebuilt"].IsTrue()) {
    add(fmt::format("the index was rebuilt at start: {}", disk["index"]["found"].Text()));
  }
  status["distrusted"].ForEach([&add](JsonView model) {
    const std::string name = model["model_name"].Text();
    add(fmt::format("engines differ over the KV of model {} of tenant {}: see `canary.distrusted`",
                    name.empty() ? model["model"].Text() : name, model["tenant"].Text()));
  });
  if (const uint64_t more = status["distrusted_unlisted"].Count(); more > 0) {
    add(fmt::format("engines differ over the KV of {} more models", FormatCount(more)));
  }
  if (status["kernels"]["state"].Text() == "failed") {
    add("kernels off: " + status["kernels"]["reason"].Text());
  }
  const JsonView stats = status["stats"];
  for (const char* name :
       {"disk_read_errors", "disk_write_errors", "index_errors", "slots_quarantined",
        "disk_read_retries", "loads_without_counter", "unreachable_counter_pages"}) {
    if (const uint64_t count = stats[name].Count(); count > 0) {
      add(fmt::format("{} {}", FormatCount(count), name));
    }
  }
  return text.empty() ? text : "\n" + text;
}

}  // namespace

std::string FormatStatus(JsonView status, const Terminal& terminal) {
  const std::string devices = DeviceTable(status);
  return Heading(status, terminal) + "\n" + TierTable(status) + devices +
         PoolTable(status["pools"], status["pools_unlisted"].Count(), !devices.empty()) +
         TenantTable(status["tenants"]) + KeptMemoryTable(status["kept_memory"]) +
         RestartText(status["restart"]) + SessionTable(status["sessions"]) + Activity(status) +
         ColdText(status["cold"], status["stats"]["blocks"]["cold"]) +
         KernelsText(status["kernels"]) + DrivesText(status["disk"]) + Troubles(status, terminal);
}

void AddStatusCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command =
      app->add_subcommand("status", "Show tiers, pools, sessions, and the engines in use.");
  command->callback([context] {
    const auto status = Ask(*context, "status");
    if (!status) return context->Fail(status.error());
    context->Print(context->json ? boost::json::serialize(*status)
                                 : FormatStatus(JsonView(&*status), Terminal(stdout)));
  });
}

}  // namespace kvtier
