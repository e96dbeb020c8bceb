#include "comm/job_store.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <gtest/gtest.h>

#include <thread>

#include "store/local_store.h"
#include "support/error_message.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
using c10d::Store;
using testing::expect_parts;
using testing::LocalStore;
using StorePtr = c10::intrusive_ptr<Store>;
using Bytes = std::vector<std::uint8_t>;

/// A c10d store of either kind.
struct Stores {
  explicit Stores(const std::string& kind) {
    if (kind == "hash") {
      store = c10::make_intrusive<c10d::HashStore>();
    } else {
      server = std::make_unique<LocalStore>();
      store = c10::make_intrusive<SecureStore>(std::make_shared<store::StoreClient>(server->client()), 20s);
    }
  }

  std::unique_ptr<LocalStore> server;
  StorePtr store;
};

/// What holds for c10d's own store must hold for ours.
class C10dStore : public ::testing::TestWithParam<const char*> {
 protected:
  Stores stores_{GetParam()};
  Store& store_ = *stores_.store;
};
INSTANTIATE_TEST_SUITE_P(Kinds, C10dStore, ::testing::Values("hash", "secure"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(C10dStore, KeepsAnyBytes) {
  Bytes all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i);
  store_.set("bytes", all);
  EXPECT_EQ(store_.get("bytes"), all);
  store_.set("empty", Bytes{});
  EXPECT_EQ(store_.get("empty"), Bytes{});
  store_.set("text", "replaced");
  store_.set("text", "said");
  EXPECT_EQ(store_.get_to_str("text"), "said");
}

TEST_P(C10dStore, CountsInDecimalText) {
  EXPECT_EQ(store_.add("count", 5), 5);
  EXPECT_EQ(store_.add("count", -7), -2);
  EXPECT_EQ(store_.get_to_str("count"), "-2");
  store_.set("number", "40");
  EXPECT_EQ(store_.add("number", 2), 42);
}

TEST_P(C10dStore, ComparesBeforeItSets) {
  EXPECT_EQ(store_.compareSet("key", std::string("something"), std::string("new")), "something");
  EXPECT_FALSE(store_.check({"key"}));
  EXPECT_EQ(store_.compareSet("key", std::string(), std::string("first")), "first");
  EXPECT_EQ(store_.compareSet("key", std::string("other"), std::string("second")), "first");
  EXPECT_EQ(store_.compareSet("key", std::string("first"), std::string("second")), "second");
}

TEST_P(C10dStore, ChecksAndDeletes) {
  store_.set("one", "1");
  store_.set("two", "2");
  EXPECT_EQ(store_.getNumKeys(), 2);
  EXPECT_TRUE(store_.check({"one", "two"}));
  EXPECT_TRUE(store_.deleteKey("one"));
  EXPECT_FALSE(store_.deleteKey("one"));
  EXPECT_FALSE(store_.check({"one", "two"}));
  EXPECT_EQ(store_.getNumKeys(), 1);
}

TEST_P(C10dStore, AppendsAndHandlesManyKeysAtOnce) {
  ASSERT_TRUE(store_.hasExtendedApi());
  store_.append("grows", {'a'});
  store_.append("grows", {'b', 'c'});
  store_.multiSet({"x", "y"}, {{1}, {2, 3}});
  EXPECT_EQ(store_.multiGet({"y", "grows", "x"}), (std::vector<Bytes>{{2, 3}, {'a', 'b', 'c'}, {1}}));
}

TEST_P(C10dStore, GetAndWaitBlockUntilAnotherThreadSets) {
  std::thread other([&] {
    std::this_thread::sleep_for(50ms);
    store_.set("first", "1");
    store_.set("second", "2");
  });
  EXPECT_EQ(store_.get_to_str("first"), "1");
  store_.wait({"first", "second"});
  EXPECT_TRUE(store_.check({"second"}));
  other.join();
}

TEST_P(C10dStore, ATimeoutIsADistStoreErrorAndTheStoreGoesOn) {
  store_.set("there", "yes");
  EXPECT_THROW(store_.wait({"there", "missing"}, 50ms), c10::DistStoreError);
  store_.setTimeout(60ms);
  EXPECT_EQ(store_.getTimeout(), 60ms);
  EXPECT_THROW(store_.get("missing"), c10::DistStoreError);
  EXPECT_THROW(store_.wait({"missing"}), c10::DistStoreError);
  EXPECT_EQ(store_.get_to_str("there"), "yes");
}

TEST_P(C10dStore, BarrierMeetsEverybody) {
  std::thread other([&] { store_.barrier("met", 2, 20s); });
  store_.barrier("met", 2, 20s);
  other.join();
}

TEST_P(C10dStore, WorksBehindAPrefix) {
  const auto inside = c10::make_intrusive<c10d::PrefixStore>("group", stores_.store);
  inside->multiSet({"a"}, {{7}});
  EXPECT_EQ(store_.get("group/a"), Bytes{7});
  EXPECT_EQ(inside->add("n", 1), 1);
}

class SecureStoreTest : public ::testing::Test {
 protected:
  std::optional<LocalStore> local_{std::in_place};
  StorePtr store_ = c10::make_intrusive<SecureStore>(std::make_shared<store::StoreClient>(local_->client()), 20s);
};

TEST_F(SecureStoreTest, AZeroTimeoutIsTheStoresOwn) {
  store_->setTimeout(50ms);
  EXPECT_THROW(store_->wait({"missing"}, Store::kNoTimeout), c10::DistStoreError);
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    store_->set("late", "1");
  });
  store_->setTimeout(20s);
  store_->wait({"late"}, Store::kNoTimeout);
  other.join();
}

TEST_F(SecureStoreTest, ACloneIsTheSameStore) {
  const StorePtr clone = store_->clone();
  store_->set("key", "value");
  EXPECT_EQ(clone->get_to_str("key"), "value");
  EXPECT_EQ(clone->getTimeout(), 20s);
  store_.reset();
  EXPECT_EQ(clone->add("key2", 1), 1) << "it does not need the first";
}

TEST_F(SecureStoreTest, ALostHostIsADistNetworkErrorThatSaysSo) {
  local_.reset();
  const auto text = testing::message_of<c10::DistNetworkError>([&] { store_->get("key"); });
  expect_parts(text, {"the connection to the store at 127.0.0.1:", "is lost", "rank 0 or the launcher"});
}

TEST_F(SecureStoreTest, AWaitingCallEndsWithItsHost) {
  std::thread other([&] {
    std::this_thread::sleep_for(50ms);
    local_.reset();
  });
  EXPECT_THROW(store_->wait({"missing"}), c10::DistNetworkError);
  other.join();
}

TEST_F(SecureStoreTest, WhatTheStoreRefusesIsAValueError) {
  store_->set("text", "no number");
  expect_parts(testing::message_of<c10::ValueError>([&] { store_->add("text", 1); }), {"refuses", "\"text\""});
  EXPECT_THROW(store_->multiSet({"a", "b"}, {{1}}), c10::ValueError);
  EXPECT_EQ(store_->get_to_str("text"), "no number") << "the connection is as good as before";
}

TEST_F(SecureStoreTest, RefusesQueues) {
  expect_parts(testing::message_of<c10::NotImplementedError>([&] { store_->queuePush("q", Bytes{1}); }),
               {"no queues", "\"q\""});
  EXPECT_THROW(store_->queuePop("q", false), c10::NotImplementedError);
  EXPECT_THROW(store_->queueLen("q"), c10::NotImplementedError);
}

}  // namespace
}  // namespace tessera::comm
