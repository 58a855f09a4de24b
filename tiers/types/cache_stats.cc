// SPDX-License-Identifier: Apache-2.0
#include "tiers/types/cache_stats.h"

namespace kvtier {

std::string_view CopyLaneName(CopyLane lane) {
  switch (lane) {
    case CopyLane::kPoolToHost:
      return "pool_to_host";
    case CopyLane::kHostToPool:
      return "host_to_pool";
    case CopyLane::kHostToDisk:
      return "host_to_disk";
    case CopyLane::kDiskToHost:
      return "disk_to_host";
  }
  return "invalid";
}

std::string_view ColdAnswerName(ColdAnswer answer) {
  switch (answer) {
    case ColdAnswer::kFound:
      return "found";
    case ColdAnswer::kAbsent:
      return "absent";
    case ColdAnswer::kLate:
      return "late";
    case ColdAnswer::kFailed:
      return "failed";
    case ColdAnswer::kSkipped:
      return "skipped";
  }
  return "invalid";
}

std::string_view ColdLossName(ColdLoss loss) {
  switch (loss) {
    case ColdLoss::kBudget:
      return "budget";
    case ColdLoss::kAway:
      return "away";
    case ColdLoss::kEarly:
      return "early";
    case ColdLoss::kFailed:
      return "failed";
  }
  return "invalid";
}

std::string_view AdoptionDropName(AdoptionDrop reason) {
  switch (reason) {
    case AdoptionDrop::kCorrupt:
      return "corrupt";
    case AdoptionDrop::kUnfinished:
      return "unfinished";
    case AdoptionDrop::kMisplaced:
      return "misplaced";
    case AdoptionDrop::kExpired:
      return "expired";
    case AdoptionDrop::kDuplicate:
      return "duplicate";
    case AdoptionDrop::kTenantCap:
      return "tenant_cap";
    case AdoptionDrop::kEvictedByHand:
      return "evicted_by_hand";
  }
  return "invalid";
}

std::string_view PinOutcomeName(PinOutcome outcome) {
  switch (outcome) {
    case PinOutcome::kGranted:
      return "granted";
    case PinOutcome::kRefused:
      return "refused";
    case PinOutcome::kEndedForSpace:
      return "ended_for_space";
  }
  return "unknown";
}

std::string_view CanaryOutcomeName(CanaryOutcome outcome) {
  switch (outcome) {
    case CanaryOutcome::kEqual:
      return "equal";
    case CanaryOutcome::kNoise:
      return "noise";
    case CanaryOutcome::kDifferent:
      return "different";
    case CanaryOutcome::kAbsent:
      return "absent";
  }
  return "invalid";
}

std::string_view ReturnOutcomeName(ReturnOutcome outcome) {
  switch (outcome) {
    case ReturnOutcome::kComplete:
      return "complete";
    case ReturnOutcome::kShort:
      return "short";
    case ReturnOutcome::kCancelled:
      return "cancelled";
    case ReturnOutcome::kForgotten:
      return "forgotten";
  }
  return "invalid";
}

std::string_view DropReasonName(DropReason reason) {
  switch (reason) {
    case DropReason::kCleanCopyBelow:
      return "clean_copy_below";
    case DropReason::kLru:
      return "lru";
    case DropReason::kMemoryClass:
      return "memory_class";
    case DropReason::kExpired:
      return "expired";
    case DropReason::kPoolPressure:
      return "pool_pressure";
    case DropReason::kHostFull:
      return "host_full";
    case DropReason::kDiskFull:
      return "disk_full";
    case DropReason::kWriteBudget:
      return "write_budget";
    case DropReason::kWriteError:
      return "write_error";
    case DropReason::kCopyFailed:
      return "copy_failed";
    case DropReason::kClientWroteCommitted:
      return "client_wrote_committed";
    case DropReason::kReadError:
      return "read_error";
    case DropReason::kCorrupt:
      return "corrupt";
    case DropReason::kStaleIndex:
      return "stale_index";
    case DropReason::kDriveLost:
      return "drive_lost";
    case DropReason::kSlabReclaimed:
      return "slab_reclaimed";
    case DropReason::kCopyAbove:
      return "copy_above";
    case DropReason::kEvictedByHand:
      return "evicted_by_hand";
    case DropReason::kTenantCap:
      return "tenant_cap";
    case DropReason::kOnOtherDevice:
      return "on_other_device";
    case DropReason::kParentLost:
      return "parent_lost";
    case DropReason::kErased:
      return "erased";
    case DropReason::kCompared:
      return "compared";
    case DropReason::kHeldTooLong:
      return "held_too_long";
  }
  return "invalid";
}

}  // namespace kvtier
