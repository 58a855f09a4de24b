#include "daemon/version.h"

namespace kvtier {

std::string_view Version() { return KVTIER_VERSION; }

}  // namespace kvtier
