// SPDX-License-Identifier: Apache-2.0
// Where a daemon and its clients meet when neither was told a path, and where a user's own daemon
// keeps its blocks.
//
// A socket that is found, not named, must belong to this user or to the system: a client hands its
// prompts to the process that listens, and another user may put a socket into a shared directory.
// Functions read the environment and the file system at each call; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace kvtier {

// The socket of the daemon that serves the whole machine. Only root can make its directory.
inline constexpr std::string_view kSystemSocket = "/run/kvtier/kvtier.sock";
// The variable of the environment that names the socket that clients connect to.
inline constexpr const char* kSocketVariable = "KVTIER_SOCKET";
inline constexpr std::string_view kSocketName = "kvtier.sock";
inline constexpr std::string_view kAdminSocketName = "admin.sock";

// Where a user's own daemon has its disk tier: kvtier/disk in $XDG_CACHE_HOME or ~/.cache; empty if
// neither is known.
[[nodiscard]] std::string UserDiskDirectory();

// Where it has its sockets: $XDG_RUNTIME_DIR/kvtier, and where that variable names no directory of
// this user's, kvtier-UID in the temporary directory.
[[nodiscard]] std::string UserSocketDirectory();

// Why other users could put something into `directory`, or have made it; empty if none can. A
// symbolic link is refused, because its owner says nothing about the directory that it leads to.
[[nodiscard]] std::string WhyNotPrivate(const std::string& directory);

// Makes UserSocketDirectory() for this user alone, or checks that it is so. Errors:
// kPermissionDenied "socket_directory_owner" if another user owns it or may write to it, kIoError
// with the errno.
[[nodiscard]] Result<std::string> MakeUserSocketDirectory();

// The socket to connect to: $KVTIER_SOCKET, which is trusted as it is named; else this user's own,
// in $XDG_RUNTIME_DIR/kvtier or in the temporary directory, if it is there and no other user can
// have put it there; else kSystemSocket, whether or not it is there.
[[nodiscard]] std::string FindSocket();

// "admin.sock" beside the socket.
[[nodiscard]] std::string AdminSocketBeside(std::string_view socket);

// Why a socket at `path` would not be used by FindSocket although something is there; empty if it
// would be, or if there is nothing.
[[nodiscard]] std::string WhyNotTrusted(const std::string& path);

}  // namespace kvtier
