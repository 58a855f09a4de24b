// SPDX-License-Identifier: Apache-2.0
// The faults of a disk.
#pragma once

namespace kvtier {

enum class WriteFault {
  kNone,
  kTorn,         // only a prefix of its sectors is written; reported done
  kLost,         // nothing is written; reported done
  kMisdirected,  // written to another place; reported done
  kFlipped,      // one bit differs at rest; reported done
  kEio,          // reported as failed; a prefix of the sectors may be written
  kEnospc,       // reported as failed; nothing is written
  kShort,        // reported as short; a prefix of the sectors is written
};

enum class ReadFault {
  kNone,
  kFlipped,  // one bit of this read differs
  kEio,
  kShort,
};

// The probability of each fault, per request.
struct DiskFaultRates {
  double torn_write = 0;
  double lost_write = 0;
  double misdirected_write = 0;
  double flipped_write = 0;
  double write_eio = 0;
  double write_enospc = 0;
  double short_write = 0;
  double flipped_read = 0;
  double read_eio = 0;
  double short_read = 0;
  double sync_eio = 0;

  // Every fault at this rate.
  [[nodiscard]] static DiskFaultRates All(double rate) {
    return {rate, rate, rate, rate, rate, rate, rate, rate, rate, rate, rate};
  }
};

}  // namespace kvtier
