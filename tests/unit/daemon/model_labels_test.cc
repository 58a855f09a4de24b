// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "daemon/session/models.h"

namespace kvtier {
namespace {

ModelRecord Record(const std::string& name, const std::string& revision) {
  ModelRecord record;
  record.name = name;
  record.revision = revision;
  record.groups = {KvGroup{.layers = 1, .kv_heads = 1, .k_head_dim = 8, .v_head_dim = 8}};
  return record;
}

TEST(ModelLabels, RanksLayoutsAndRevisionsOfAModelShareOne) {
  ModelRegistry models(64, 16);
  ModelRecord record = Record("llama", "v1");
  record.tensor_parallel_size = 2;
  const auto first = models.Register("a", record);
  record.tensor_parallel_rank = 1;
  const auto second = models.Register("a", record);
  record.groups[0].dtype = KvDtype::kFloat32;
  const auto third = models.Register("a", record);
  record.revision = "v2";
  const auto fourth = models.Register("a", record);
  ASSERT_TRUE(first && second && third && fourth);
  EXPECT_NE(first->model->id.value, second->model->id.value);
  for (const auto* other : {&*second, &*third, &*fourth}) {
    EXPECT_EQ(other->model->label, first->model->label);
  }
  EXPECT_EQ(models.labels(), (std::vector<ModelLabel>{{"a", "llama"}}));
}

TEST(ModelLabels, NamesAndTenantsAreToldApart) {
  ModelLabels labels(16);
  EXPECT_EQ(labels.LabelFor("a", "llama"), 0u);
  EXPECT_EQ(labels.LabelFor("a", "qwen"), 1u);
  EXPECT_EQ(labels.LabelFor("b", "llama"), 2u);
  EXPECT_EQ(labels.LabelFor("a", "llama"), 0u);
}

TEST(ModelLabels, ATenantCannotMakeMoreThanItsShareNorTakeAnothers) {
  ModelLabels labels(2);
  for (int i = 0; i < 1000; ++i) (void)labels.LabelFor("a", fmt::format("model {}", i));
  EXPECT_EQ(labels.all(), (std::vector<ModelLabel>{{"a", "model 0"}, {"a", "model 1"}, {"a", ""}}));
  EXPECT_EQ(labels.LabelFor("a", "model 999"), 2u);
  EXPECT_EQ(labels.LabelFor("a", "model 1"), 1u) << "what has a label keeps it";
  EXPECT_EQ(labels.LabelFor("b", "model 999"), 3u);
}

TEST(ModelLabels, NoneAreMadeWhereNoneAreWanted) {
  ModelLabels labels(0);
  (void)labels.LabelFor("a", "llama");
  EXPECT_EQ(labels.all(), (std::vector<ModelLabel>{{"a", ""}}));
}

}  // namespace
}  // namespace kvtier
