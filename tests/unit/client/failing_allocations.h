// SPDX-License-Identifier: Apache-2.0
// Lets an allocation fail: this program's operator new counts.
#pragma once

namespace kvtier::client {

// So many allocations of this thread succeed yet; the next one throws std::bad_alloc.
void FailAfter(int allocations);
// Lets all succeed from now on. Returns whether one has failed.
[[nodiscard]] bool FailNoMore();

}  // namespace kvtier::client
