// SPDX-License-Identifier: Apache-2.0
// A trace document in OpenTelemetry's form, for tracing systems that engines' spans go to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

// The spans of `document`, which TraceDocument::Finish wrote, as one line: an OTLP export request
// in JSON, as a collector's otlpjsonfile receiver and its HTTP endpoint take it. Spans of one
// request of one session share a trace; parts of a span have it as their parent. Evictions, which
// take no time, are left out. `seed` tells traces of several documents apart: any number that is
// not used twice. Pure. Errors: kCorrupt "bad_trace".
[[nodiscard]] Result<std::string> ToOtlp(std::string_view document, uint64_t seed);

}  // namespace kvtier
