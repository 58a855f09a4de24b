// SPDX-License-Identifier: Apache-2.0
// The first steps of most tests of clients that replay nothing.
#pragma once

#include <cstdint>
#include <string>

#include "kvtier/kvtier.hpp"

namespace kvtier {

// Ends the test's process if no daemon answers there. Calls wait for what a busy machine does late.
[[nodiscard]] kvt::Connection ConnectTo(const std::string& socket);

// One layer, one head of 64: its number on the connection. Fails the test if it is refused.
[[nodiscard]] uint32_t RegisterTinyModel(kvt::Connection* connection);

}  // namespace kvtier
