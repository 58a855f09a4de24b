// SPDX-License-Identifier: Apache-2.0
// The result of a generation as JSON.
#pragma once

#include <string>

#include "client/examples/generator.h"

namespace kvtier::generate {

// One object of schema "kvtier.generate/1". Bytes of the text above 127 appear as the code points
// of the same number, so that any text is valid JSON and none is lost.
[[nodiscard]] std::string ToJson(const Generation& generation);

}  // namespace kvtier::generate
