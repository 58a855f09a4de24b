// SPDX-License-Identifier: Apache-2.0
// The onload results as a picture.
#pragma once

#include <string>

#include "base/result.h"
#include "tools/bench/bench.h"

namespace kvtier {

// Throughput against block size, each tier with its ceiling, as an SVG file drawn by gnuplot.
// Errors: kInvalidArgument "nothing_to_plot"; kNotFound "no_gnuplot"; kIoError.
[[nodiscard]] Status PlotOnloads(const BenchResults& results, const std::string& path);

}  // namespace kvtier
