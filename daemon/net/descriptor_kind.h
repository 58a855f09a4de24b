// SPDX-License-Identifier: Apache-2.0
// Which descriptors the daemon takes from clients.
#pragma once

namespace kvtier {

// Whether the descriptor is of memory that can be lent or kept: a file in memory (tmpfs, memfd) or
// one of the GPU driver's. Never blocks, whatever it is of: no file system is asked, since one of a
// user's own may take as long to answer as that user likes. Any thread.
[[nodiscard]] bool IsOfMemory(int descriptor);

}  // namespace kvtier
