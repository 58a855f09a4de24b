// SPDX-License-Identifier: Apache-2.0
#include "daemon/runtime/version.h"

namespace kvtier {

std::string_view Version() { return KVTIER_VERSION; }

}  // namespace kvtier
