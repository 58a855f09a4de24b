// SPDX-License-Identifier: Apache-2.0
#include "client/abi/c_common.h"

namespace kvtier::client {
namespace {

// The view points into `error`, and is set anew with it.
struct LastError {
  Error error;
  kvt_error view{KVT_OK, "", ""};
};

// Each thread has its own, so that a failure elsewhere does not replace an error before its caller
// has read it.
LastError& Slot() {
  thread_local LastError last;
  return last;
}

}  // namespace

kvt_status SetLastError(Error error) {
  LastError& last = Slot();
  last.error = std::move(error);
  last.view = {static_cast<kvt_status>(last.error.code), last.error.reason.c_str(),
               last.error.context.c_str()};
  return last.view.code;
}

}  // namespace kvtier::client

extern "C" {

// Success leaves it as it was: callers read it only after a failure.
KVT_API const kvt_error* kvt_last_error(void) { return &kvtier::client::Slot().view; }

}  // extern "C"
