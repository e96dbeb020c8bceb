#include <tessera/data_parallel/distribute.h>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(DdpOptions, ListsEveryFieldThatHasATextForm) {
  EXPECT_EQ(DdpOptions::fields().at("bucket_bytes").default_text(), "26214400");
  EXPECT_EQ(DdpOptions::fields().fields().size(), 12U);
}

}  // namespace
}  // namespace tessera
