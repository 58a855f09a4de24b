// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/models.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvtier {
namespace {

ModelRecord Record(const std::string& revision, bool replicated = false) {
  ModelRecord record;
  record.name = "llama";
  record.revision = revision;
  record.groups = {KvGroup{.layers = 1, .kv_heads = 1, .k_head_dim = 8, .v_head_dim = 8}};
  record.groups[0].replicated = replicated;
  return record;
}

ModelHold Register(ModelRegistry* models, const ModelRecord& record) {
  auto registered = models->Register("a", record);
  EXPECT_TRUE(registered);
  return registered ? registered->model : nullptr;
}

TEST(Models, AnEngineMayRegisterOneAfterTheOtherWithoutAnEnd) {
  ModelRegistry models(4, 16);
  ModelHold held = Register(&models, Record("0"));
  for (int i = 1; i < 10'000; ++i) {
    const ModelHold next = Register(&models, Record(fmt::format("{}", i)));
    ASSERT_TRUE(next);
    EXPECT_EQ(next->id.value, static_cast<uint32_t>(i) + 1) << "no id is given twice";
  }
  EXPECT_EQ(models.count("a"), kMaxIdleModels + 1) << "those that are held, and the idle ones";
  const auto found = models.Find("a", held->id);
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)->record.revision, "0") << "one that is held is never forgotten";
  EXPECT_FALSE(models.Find("a", wire::ModelId(2)));
}

TEST(Models, SessionsHoldSoManyAtOnceAndNoMore) {
  ModelRegistry models(2, 16);
  ModelHold first = Register(&models, Record("1")), second = Register(&models, Record("2"));
  const auto refused = models.Register("a", Record("3"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "too_many_models");
  EXPECT_TRUE(models.Register("b", Record("3"))) << "another tenant";
  EXPECT_EQ(Register(&models, Record("1")), first) << "a known one";
  second.reset();
  EXPECT_TRUE(Register(&models, Record("3")));
}

TEST(Models, TheOneThatWasRegisteredLongestAgoIsForgottenFirst) {
  ModelRegistry models(4, 16);
  const uint32_t kept = Register(&models, Record("kept"))->id.value;
  const uint32_t lost = Register(&models, Record("lost"))->id.value;
  for (size_t i = 0; i < kMaxIdleModels; ++i) {
    (void)Register(&models, Record(fmt::format("{}", i)));
    (void)Register(&models, Record("kept"));
  }
  EXPECT_TRUE(models.Find("a", wire::ModelId(kept)));
  EXPECT_FALSE(models.Find("a", wire::ModelId(lost)));
}

TEST(Models, AForgottenModelHasNoNameButItsLabel) {
  ModelRegistry models(4, 16);
  ModelHold model = Register(&models, Record("1"));
  const ModelFingerprint group = model->groups[0].fingerprint;
  models.NoteNamespace(NamespaceId(3), *model);
  models.Forget("a", model->id);
  EXPECT_EQ(models.NameOf("a", group.Hex()), "llama") << "it is held";
  EXPECT_TRUE(models.IsHeld(*model, "a"));
  const wire::ModelId id = model->id;
  model.reset();
  models.Forget("a", id);
  EXPECT_EQ(models.NameOf("a", group.Hex()), "");
  EXPECT_EQ(models.count("a"), 0u);
  EXPECT_EQ(models.LabelOf(NamespaceId(3)), 0u);
  EXPECT_FALSE(models.LabelOf(NamespaceId(2)));
  EXPECT_EQ(Register(&models, Record("1"))->id.value, id.value + 1);
}

TEST(Models, AGroupOfAllRanksIsKnownByThoseThatAreLeft) {
  ModelRegistry models(4, 16);
  ModelRecord record = Record("1", /*replicated=*/true);
  record.tensor_parallel_size = 2;
  const wire::ModelId first = Register(&models, record)->id;
  record.tensor_parallel_rank = 1;
  const ModelHold second = Register(&models, record);
  const ModelFingerprint group = second->groups[0].fingerprint;
  models.Forget("a", first);
  const auto found = models.FindGroup("a", group);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->model, second.get());
}

}  // namespace
}  // namespace kvtier
