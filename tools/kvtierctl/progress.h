// Progress of a long admin call, on standard error.
#pragma once

#include <string>

#include "tools/support/admin.h"

namespace kvtier {

// Shows "verb done of total blocks (share), rate" while somebody watches; see terminal.h.
[[nodiscard]] AdminProgress ShowBlockProgress(std::string verb);
// Removes what was shown.
void ClearProgress();

}  // namespace kvtier
