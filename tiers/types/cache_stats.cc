// SPDX-License-Identifier: Apache-2.0
#include "tiers/types/cache_stats.h"

#include "base/enum_names.h"

namespace kvtier {
namespace {

constexpr EnumNames<CopyLane, kCopyLaneCount> kCopyLaneNames({
    {CopyLane::kPoolToHost, "pool_to_host"},
    {CopyLane::kHostToPool, "host_to_pool"},
    {CopyLane::kHostToDisk, "host_to_disk"},
    {CopyLane::kDiskToHost, "disk_to_host"},
    {CopyLane::kPoolToPool, "pool_to_pool"},
});

constexpr EnumNames<ColdAnswer, kColdAnswerCount> kColdAnswerNames({
    {ColdAnswer::kFound, "found"},
    {ColdAnswer::kAbsent, "absent"},
    {ColdAnswer::kLate, "late"},
    {ColdAnswer::kFailed, "failed"},
    {ColdAnswer::kSkipped, "skipped"},
});

constexpr EnumNames<ColdLoss, kColdLossCount> kColdLossNames({
    {ColdLoss::kBudget, "budget"},
    {ColdLoss::kAway, "away"},
    {ColdLoss::kEarly, "early"},
    {ColdLoss::kFailed, "failed"},
});

constexpr EnumNames<AdoptionDrop, kAdoptionDropCount> kAdoptionDropNames({
    {AdoptionDrop::kCorrupt, "corrupt"},
    {AdoptionDrop::kUnfinished, "unfinished"},
    {AdoptionDrop::kMisplaced, "misplaced"},
    {AdoptionDrop::kExpired, "expired"},
    {AdoptionDrop::kDuplicate, "duplicate"},
    {AdoptionDrop::kTenantCap, "tenant_cap"},
    {AdoptionDrop::kEvictedByHand, "evicted_by_hand"},
});

constexpr EnumNames<PinOutcome, kPinOutcomeCount> kPinOutcomeNames({
    {PinOutcome::kGranted, "granted"},
    {PinOutcome::kRefused, "refused"},
    {PinOutcome::kEndedForSpace, "ended_for_space"},
});

constexpr EnumNames<CanaryOutcome, kCanaryOutcomeCount> kCanaryOutcomeNames({
    {CanaryOutcome::kEqual, "equal"},
    {CanaryOutcome::kNoise, "noise"},
    {CanaryOutcome::kDifferent, "different"},
    {CanaryOutcome::kAbsent, "absent"},
});

constexpr EnumNames<ReturnOutcome, kReturnOutcomeCount> kReturnOutcomeNames({
    {ReturnOutcome::kComplete, "complete"},
    {ReturnOutcome::kShort, "short"},
    {ReturnOutcome::kCancelled, "cancelled"},
    {ReturnOutcome::kForgotten, "forgotten"},
});

constexpr EnumNames<DropReason, kDropReasonCount> kDropReasonNames({
    {DropReason::kCleanCopyBelow, "clean_copy_below"},
    {DropReason::kLru, "lru"},
    {DropReason::kMemoryClass, "memory_class"},
    {DropReason::kExpired, "expired"},
    {DropReason::kPoolPressure, "pool_pressure"},
    {DropReason::kHostFull, "host_full"},
    {DropReason::kDiskFull, "disk_full"},
    {DropReason::kWriteBudget, "write_budget"},
    {DropReason::kWriteError, "write_error"},
    {DropReason::kCopyFailed, "copy_failed"},
    {DropReason::kClientWroteCommitted, "client_wrote_committed"},
    {DropReason::kReadError, "read_error"},
    {DropReason::kCorrupt, "corrupt"},
    {DropReason::kStaleIndex, "stale_index"},
    {DropReason::kSlabReclaimed, "slab_reclaimed"},
    {DropReason::kDriveLost, "drive_lost"},
    {DropReason::kCopyAbove, "copy_above"},
    {DropReason::kEvictedByHand, "evicted_by_hand"},
    {DropReason::kTenantCap, "tenant_cap"},
    {DropReason::kOnOtherDevice, "on_other_device"},
    {DropReason::kParentLost, "parent_lost"},
    {DropReason::kErased, "erased"},
    {DropReason::kCompared, "compared"},
});

}  // namespace

std::string_view CopyLaneName(CopyLane lane) { return kCopyLaneNames.Of(lane); }
std::string_view ColdAnswerName(ColdAnswer answer) { return kColdAnswerNames.Of(answer); }
std::string_view ColdLossName(ColdLoss loss) { return kColdLossNames.Of(loss); }
std::string_view AdoptionDropName(AdoptionDrop reason) { return kAdoptionDropNames.Of(reason); }
std::string_view PinOutcomeName(PinOutcome outcome) { return kPinOutcomeNames.Of(outcome); }
std::string_view CanaryOutcomeName(CanaryOutcome outcome) {
  return kCanaryOutcomeNames.Of(outcome);
}
std::string_view ReturnOutcomeName(ReturnOutcome outcome) {
  return kReturnOutcomeNames.Of(outcome);
}
std::string_view DropReasonName(DropReason reason) { return kDropReasonNames.Of(reason); }

}  // namespace kvtier
