#pragma once

#include <tessera/store/client.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::comm {

/// The store of a job as c10d's backends see it.
/// Throws what c10d's own stores do: c10::DistStoreError when keys did not come in time, c10::DistNetworkError when the
/// connection is lost, c10::ValueError for what the store refuses. A timeout of zero is the store's own, getTimeout().
/// Thread-safety: all functions but setTimeout().
class SecureStore : public c10d::Store {
 public:
  SecureStore(std::shared_ptr<store::StoreClient> client, std::chrono::milliseconds timeout);

  using c10d::Store::compareSet;
  using c10d::Store::set;

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  /// Of all users of the job's store.
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

  /// Refused, as the next two are: nothing that we run needs queues.
  void queuePush(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> queuePop(const std::string& key, bool block) override;
  std::int64_t queueLen(const std::string& key) override;

 private:
  std::shared_ptr<store::StoreClient> client_;
};

}  // namespace tessera::comm
