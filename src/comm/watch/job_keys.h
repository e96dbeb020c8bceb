#pragma once

#include <tessera/store/client.h>

#include <memory>
#include <string>
#include <utility>

namespace tessera::comm {

/// The keys of the watch in the job's store.
class JobKeys {
 public:
  JobKeys(std::shared_ptr<store::StoreClient> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  store::StoreClient& store() const { return *store_; }

  std::string address(int rank) const { return prefix_ + "address/" + std::to_string(rank); }
  /// Counts the ranks that watch; the last one sets the second.
  std::string watching() const { return prefix_ + "watching"; }
  std::string all_watch() const { return prefix_ + "all_watch"; }
  std::string left(int rank) const { return prefix_ + "left/" + std::to_string(rank); }
  std::string alarm(int number) const { return prefix_ + "alarm/" + std::to_string(number); }
  std::string answer(int number, int rank) const {
    return prefix_ + "answer/" + std::to_string(number) + "/" + std::to_string(rank);
  }
  /// Set once the report of that alarm is out.
  std::string told(int number) const { return prefix_ + "told/" + std::to_string(number); }

 private:
  std::shared_ptr<store::StoreClient> store_;
  std::string prefix_;
};

}  // namespace tessera::comm
