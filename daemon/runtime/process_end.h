// SPDX-License-Identifier: Apache-2.0
// How this process ends for those who wait for it: a service manager that starts the next daemon,
// and that daemon, which needs the disk directory's lock and the keeper.
//
// The kernel takes long to give back what a daemon has: 0.8 s for 48 GiB of pinned memory in huge
// pages on an H200's machine, 1.6 s and more in small ones. A process counts as ended only then.
#pragma once

#include "base/result.h"

namespace kvtier {

// Starts a child that shares this process's memory and descriptors, and sleeps until the process is
// gone. It then closes every descriptor but those of a GPU's driver, unmaps the rings of io_uring,
// and ends half a second later. So this process is gone at once, whatever the next one waits for is
// given back first, and the rest when that one has opened the GPU: its driver does such things one
// after the other. Until then the child has this process's context there, and its VRAM.
//
// Only for a process whose large memory another process keeps, because the next one would otherwise
// need as much once more while this one's is still there. Called once, when devices and files are
// open: the next daemon is taken to wait for files opened later. Errors: kResourceExhausted;
// kUnsupported "thread_sanitizer" in a build with that sanitizer.
[[nodiscard]] Status StartTeardownProcess();

}  // namespace kvtier
