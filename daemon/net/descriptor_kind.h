// SPDX-License-Identifier: Apache-2.0
// Which descriptors the daemon takes from clients.
#pragma once

namespace kvtier {

// Whether the descriptor is of memory that can be lent or kept: a file in memory (tmpfs, memfd) or
// one of the GPU driver's. Never blocks, whatever it is of: no file system is asked, since one of a
// user's own may take as long to answer as that user likes. Any thread.
[[nodiscard]] bool IsOfMemory(int descriptor);

// The kernel lets peers of the socket send descriptors, or refuses these (EPERM for the peer) where
// it can: Linux 6.16. On older kernels the peer can always send descriptors, and Connection looks
// for them before it receives.
void PassDescriptors(int socket, bool pass);

}  // namespace kvtier
