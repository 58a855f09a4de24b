// SPDX-License-Identifier: Apache-2.0
// Static probes (USDT) for tools that look at the running process from outside, such as bpftrace
// and perf; docs/TRACING.md lists them with their arguments. Without the header (Debian:
// systemtap-sdt-dev) they are compiled away.
//
// A probe that no tool watches is one instruction that does nothing. Its arguments are integers, at
// most six, and are computed whether a tool watches or not, so pass values that are at hand.
#pragma once

#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define KVT_PROBE3(name, a, b, c) DTRACE_PROBE3(kvtier, name, a, b, c)
#define KVT_PROBE4(name, a, b, c, d) DTRACE_PROBE4(kvtier, name, a, b, c, d)
#define KVT_PROBE6(name, a, b, c, d, e, f) DTRACE_PROBE6(kvtier, name, a, b, c, d, e, f)
#else
#define KVT_PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#define KVT_PROBE4(name, a, b, c, d) (KVT_PROBE3(name, a, b, c), (void)(d))
#define KVT_PROBE6(name, a, b, c, d, e, f) (KVT_PROBE4(name, a, b, c, d), (void)(e), (void)(f))
#endif
