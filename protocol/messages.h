// SPDX-License-Identifier: Apache-2.0
// All messages of both sockets. docs/PROTOCOL.md gives their bytes.
//
// Every message is a plain struct with `static constexpr MessageType kType`. Encode and Decode of
// message_type.h turn it into a frame and back; one list of its fields, in the source beside its
// header, serves both. A std::span member borrows: for Encode from the caller, after Decode from
// the payload.
#pragma once

#include "protocol/attend_messages.h"
#include "protocol/block_messages.h"
#include "protocol/kept_memory_messages.h"
#include "protocol/message_type.h"
#include "protocol/region_messages.h"
#include "protocol/session_messages.h"
