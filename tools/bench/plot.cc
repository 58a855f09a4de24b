// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "base/posix.h"
#include "base/units.h"
#include "tools/bench/bench.h"

namespace kvtier {
namespace {

constexpr int kCommandNotFound = 127;

std::string_view TierName(Tier tier) { return tier == Tier::kHost ? "host" : "disk"; }
std::string_view TierColor(Tier tier) { return tier == Tier::kHost ? "#1f6fb4" : "#d9720e"; }

// Within single quotes gnuplot knows one escape: the quote itself, doubled.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c;
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

std::vector<OnloadResult> Of(const BenchResults& results, Tier tier) {
  std::vector<OnloadResult> of_tier;
  for (const OnloadResult& result : results.onload) {
    if (result.tier == tier) of_tier.push_back(result);
  }
  return of_tier;
}

std::string Script(const BenchResults& results, const std::string& path) {
  std::string data;
  std::string curves;
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    const std::vector<OnloadResult> rows = Of(results, tier);
    if (rows.empty()) continue;
    const std::string_view name = TierName(tier);
    data += fmt::format("${} << EOD\n", name);
    for (const OnloadResult& row : rows) {
      data += fmt::format("{} {} {}\n", static_cast<double>(row.block_bytes) / kKiB, row.gbps,
                          row.ceiling_gbps);
    }
    data += "EOD\n";
    curves += fmt::format(
        "{}${} using 1:2 with linespoints pt 7 lw 2 lc rgb '{}' title '{}', "
        "${} using 1:3 with lines dt 2 lw 2 lc rgb '{}' title '{} ceiling'",
        curves.empty() ? "" : ", ", name, TierColor(tier), name, name, TierColor(tier), name);
  }
  // Room on both sides: of a single size gnuplot would make a range of its own, and complain.
  const auto sizes = std::ranges::minmax(results.onload, {}, &OnloadResult::block_bytes);
  return fmt::format(
      "{}set terminal svg size 800,500 font 'sans-serif,14' background rgb 'white'\n"
      "set output {}\n"
      "set title 'Onload into the pool, and the ceiling of the machine'\n"
      "set xlabel 'block size [KiB]'\nset ylabel 'throughput [10^9 bytes/s]'\n"
      "set logscale x 2\nset xrange [{}:{}]\nset yrange [0:*]\n"
      "set grid\nset key outside bottom center horizontal\n"
      "plot {}\n",
      data, Quoted(path), static_cast<double>(sizes.min.block_bytes) / kKiB / 1.5,
      static_cast<double>(sizes.max.block_bytes) / kKiB * 1.5, curves);
}

Error NoGnuplot() {
  return {ErrorCode::kNotFound, "no_gnuplot",
          "gnuplot is not in $PATH; Debian has it in the package gnuplot-nox"};
}

}  // namespace

Status FindGnuplot() {
  const int status = std::system("gnuplot --version >/dev/null 2>&1");
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCommandNotFound) {
    return tl::unexpected(NoGnuplot());
  }
  return {};
}

Status PlotOnloads(const BenchResults& results, const std::string& path) {
  if (results.onload.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "nothing_to_plot",
                     "--plot draws onloads, and none was measured");
  }
  // gnuplot says of a file that it cannot write only that it cannot.
  if (!std::ofstream(path, std::ios::app)) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "writing " + path));
  }
  std::FILE* gnuplot = ::popen("gnuplot", "we");
  if (gnuplot == nullptr) {
    return tl::unexpected(ErrnoError(ErrorCode::kIoError, errno, "starting gnuplot"));
  }
  const std::string script = Script(results, path);
  std::fwrite(script.data(), 1, script.size(), gnuplot);
  const int status = ::pclose(gnuplot);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCommandNotFound) {
    return tl::unexpected(NoGnuplot());
  }
  return MakeError(ErrorCode::kIoError, "gnuplot_failed", "gnuplot could not draw " + path);
}

}  // namespace kvtier
