// SPDX-License-Identifier: Apache-2.0
// kvtierctl top: the status and the rates of the last seconds, again and again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "tiers/types/cache_options.h"
#include "tools/kvtierctl/ask.h"
#include "tools/kvtierctl/command.h"
#include "tools/kvtierctl/status.h"
#include "tools/support/json_view.h"
#include "tools/support/table.h"

namespace kvtier {
namespace {

namespace json = boost::json;

constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kClearLine = "\x1b[K";
constexpr std::string_view kClearBelow = "\x1b[J";
constexpr std::string_view kNoWrap = "\x1b[?7l";
constexpr std::string_view kWrap = "\x1b[?7h";

struct TopArguments {
  double interval_s = 2;
  uint64_t count = 0;
};

// Changes between two readings, per second.
struct Rates {
  double seconds = 0;
  double asked = 0;
  double pool = 0;
  double host = 0;
  double disk = 0;
  double cold = 0;
  double miss = 0;
  double evicted = 0;  // copies that left a tier
  double onload_bytes = 0;
  double offload_bytes = 0;
  double disk_read_bytes = 0;
  double disk_write_bytes = 0;
};

double Drops(JsonView stats) {
  double total = 0;
  for (const std::string_view tier : kTierNames) {
    const json::object* reasons = stats["drops"][tier].object();
    if (reasons == nullptr) continue;
    for (const auto& [reason, count] : *reasons) total += JsonView(&count).Number();
  }
  return total;
}

Rates RatesBetween(JsonView before, JsonView now) {
  Rates rates;
  rates.seconds = now["uptime_s"].Number() - before["uptime_s"].Number();
  // Another daemon has started meanwhile: nothing to compare with.
  if (before["pid"].Count() != now["pid"].Count() || rates.seconds <= 0) return {};
  const JsonView old_stats = before["stats"];
  const JsonView stats = now["stats"];
  const auto rate = [&](std::string_view member) {
    return (stats[member].Number() - old_stats[member].Number()) / rates.seconds;
  };
  const auto blocks = [&](std::string_view member) {
    return (stats["blocks"][member].Number() - old_stats["blocks"][member].Number()) /
           rates.seconds;
  };
  rates.asked = blocks("asked");
  rates.pool = blocks("pool");
  rates.host = blocks("host");
  rates.cold = blocks("cold");
  rates.disk = blocks("disk") - rates.cold;
  rates.miss = blocks("miss");
  rates.evicted = (Drops(stats) - Drops(old_stats)) / rates.seconds;
  rates.onload_bytes = rate("onload_bytes");
  rates.offload_bytes = rate("offload_bytes");
  rates.disk_read_bytes = rate("disk_read_bytes");
  rates.disk_write_bytes = rate("disk_write_bytes");
  return rates;
}

std::string RatesText(const Rates& rates) {
  const auto count = [](double number) {
    return FormatCompactCount(static_cast<uint64_t>(std::max(0.0, number)));
  };
  return fmt::format(
      "\nblocks/s  asked {}  pool {}  host {}  disk {}  cold {}  miss {}  dropped {}\n"
      "GB/s      onload {:.2f}  offload {:.2f}  disk read {:.2f}  disk write {:.2f}\n",
      count(rates.asked), count(rates.pool), count(rates.host), count(rates.disk),
      count(rates.cold), count(rates.miss), count(rates.evicted), rates.onload_bytes / 1e9,
      rates.offload_bytes / 1e9, rates.disk_read_bytes / 1e9, rates.disk_write_bytes / 1e9);
}

std::string RatesJson(const Rates& rates, const json::value& status) {
  return json::serialize(json::object{{"schema", "kvtier.top/1"},
                                      {"seconds", rates.seconds},
                                      {"blocks_per_second",
                                       {{"asked", rates.asked},
                                        {"pool", rates.pool},
                                        {"host", rates.host},
                                        {"disk", rates.disk},
                                        {"cold", rates.cold},
                                        {"miss", rates.miss},
                                        {"dropped", rates.evicted}}},
                                      {"bytes_per_second",
                                       {{"onload", rates.onload_bytes},
                                        {"offload", rates.offload_bytes},
                                        {"disk_read", rates.disk_read_bytes},
                                        {"disk_write", rates.disk_write_bytes}}},
                                      {"status", status}});
}

// Over the last frame, line by line, so that nothing flickers. The terminal cuts long lines off,
// for a line that goes on below would push the first ones out of sight.
std::string Repaint(const std::string& frame) {
  std::string screen = std::string(kHome).append(kNoWrap);
  for (const char c : frame) {
    if (c == '\n') screen += kClearLine;
    screen += c;
  }
  return screen.append(kClearBelow).append(kWrap);
}

class Watcher {
 public:
  explicit Watcher(CommandContext* context) : context_(*context), terminal_(stdout) {}

  // Shows the status as it is now. False if it cannot be had; the context then says why.
  bool Show() {
    Result<json::value> now = Ask(context_, "status");
    if (!now) {
      context_.Fail(now.error());
      return false;
    }
    const JsonView status(&*now);
    const Rates rates = before_ ? RatesBetween(JsonView(&*before_), status) : Rates();
    Print(context_.json
              ? RatesJson(rates, *now) + "\n"
              : FitRows(FormatStatus(status, terminal_), RatesText(rates), terminal_.Rows()));
    before_ = *std::move(now);
    return true;
  }

 private:
  void Print(const std::string& frame) {
    const bool repaint = terminal_.interactive() && !context_.json;
    if (repaint) {
      context_.Print(Repaint(frame));
    } else {
      // One after the other, for logs and pipes.
      const bool separate = before_.has_value() && !context_.json;
      context_.Print((separate ? "\n" : "") + frame);
    }
    std::fflush(stdout);
  }

  CommandContext& context_;
  const Terminal terminal_;
  std::optional<json::value> before_;
};

void Top(const TopArguments& arguments, CommandContext* context) {
  if (Terminal(stdout).interactive() && !context->json) fmt::print("\x1b[2J");
  Watcher watcher(context);
  for (uint64_t shown = 0; arguments.count == 0 || shown < arguments.count; ++shown) {
    if (shown > 0) std::this_thread::sleep_for(std::chrono::duration<double>(arguments.interval_s));
    if (!watcher.Show()) return;
  }
}

}  // namespace

void AddTopCommand(CLI::App* app, CommandContext* context) {
  CLI::App* command = app->add_subcommand(
      "top", "Show the status and the rates of the last seconds, until interrupted.");
  const auto arguments = std::make_shared<TopArguments>();
  command->add_option("--interval", arguments->interval_s, "Seconds between two looks.")
      ->check(CLI::Range(0.1, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--count", arguments->count, "End after N looks; 0: never.")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->type_name("N")
      ->capture_default_str();
  command->footer(
      "Repaints a terminal; anything else gets one text after the other, or with --json one\n"
      "document a line. The first look has no rates yet.\n"
      "Example:\n"
      "  kvtierctl top --interval 5 --json | jq .blocks_per_second.miss");
  command->callback([arguments, context] { Top(*arguments, context); });
}

}  // namespace kvtier
