// SPDX-License-Identifier: Apache-2.0
#include "daemon/cold/rados/rados_names.h"

#include <gtest/gtest.h>

#include <string>

namespace kvtier {
namespace {

TEST(RadosName, OfABlockHasATenantAModelAndAHash) {
  const auto name = RadosName::Parse("kvtier/1/acme/ab12-16384/0f");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->model, (RadosModel{"acme", "ab12-16384"}));
  EXPECT_EQ(name->hash, "0f");
}

TEST(RadosName, OfAnythingElseIsRefused) {
  for (const char* const name :
       {"", "kvtier/probe", "kvtier/1/", "kvtier/1/acme", "kvtier/1/acme/model",
        "kvtier/1//model/0f", "kvtier/1/acme//0f", "kvtier/1/acme/model/",
        "kvtier/1/acme/model/0f/1", "kvtier/2/acme/model/0f"}) {
    EXPECT_FALSE(RadosName::Parse(name)) << name;
  }
}

TEST(RadosName, LiesInTheNamespaceOfItsTenantAndPeriod) {
  const RadosName name{{"acme", "model"}, "0f"};
  const RadosPlace object = RadosObject(name, 480'000);
  EXPECT_EQ(object.name_space, "kvtier/1/acme/00480000");
  EXPECT_EQ(object.object, "model/0f");
  EXPECT_EQ(RadosIndex(name.model, 480'000).name_space, object.name_space);
  EXPECT_EQ(RadosPeriods("acme").name_space, "kvtier/1/acme/");
}

TEST(RadosPeriod, IsTheHourInWhichABlockEnds) {
  EXPECT_EQ(RadosPeriodOf(7199), 1u);
  EXPECT_EQ(RadosPeriodOf(7200), 2u);
}

TEST(RadosPeriodKey, ReadsWhatItWrites) {
  const RadosPeriodKey key{480'000, "ab12-16384"};
  const auto read = RadosPeriodKey::Parse(key.Text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->period, key.period);
  EXPECT_EQ(read->model, key.model);
}

TEST(RadosPeriodKey, OfOtherBytesIsRefused) {
  for (const char* const text : {"", "00480000", "00480000/", "0048000/model", "0048000x/model"}) {
    EXPECT_FALSE(RadosPeriodKey::Parse(text)) << text;
  }
}

TEST(RadosEndpoint, IsAPoolAndWhereItsClusterIsDescribed) {
  const auto plain = RadosEndpoint::Parse("kvtier");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->pool, "kvtier");
  EXPECT_EQ(plain->configuration, "");
  const auto other = RadosEndpoint::Parse("kvtier@/etc/ceph/other.conf");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->configuration, "/etc/ceph/other.conf");
}

TEST(RadosEndpoint, OfAServerOrWithARelativePathIsRefused) {
  for (const char* const text :
       {"", "@/etc/ceph/ceph.conf", "kvtier@ceph.conf", "/run/store.sock"}) {
    EXPECT_FALSE(RadosEndpoint::Parse(text)) << text;
  }
}

TEST(RadosNames, FindsTheTenantInAPrefixAndInNothingElse) {
  EXPECT_EQ(RadosTenantOf("kvtier/1/acme%2F/"), "acme%2F");
  for (const char* const text : {"", "kvtier/1/", "kvtier/1//", "kvtier/1/acme", "kvtier/1/a/b/",
                                 "kvtier/2/acme/", "acme/"}) {
    EXPECT_EQ(RadosTenantOf(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace kvtier
