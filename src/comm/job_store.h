#pragma once

#include <tessera/store/client.h>
#include <tessera/store/host_secret.h>
#include <tessera/store/secret.h>
#include <tessera/store/server.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/launch_environment.h"

namespace tessera::comm {

/// The store of a job as c10d's backends see it.
/// Throws what c10d's own stores do: c10::DistStoreError when keys did not come in time, c10::DistNetworkError when the
/// connection is lost, c10::ValueError for what the store refuses. A timeout of zero stands for getTimeout().
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

/// The secret that this job was given: TESSERA_SECRET, which a launcher sets for this very job, or else the file that
/// `secret_file` names, or else the file that TESSERA_SECRET_FILE names. Nothing when none of them is given.
/// Throws ConfigError when the value is no secret, or when other users can read the file.
std::optional<store::Secret> given_secret(const GetVariable& get, const std::string& secret_file);

/// What to do about a missing secret, for messages.
std::string how_to_give_a_secret();

/// The store in which the processes of a job meet, seen from one of them. The process that hosts the store keeps it
/// alive with this object.
struct JobStore {
  std::string address;
  int port = 0;
  std::unique_ptr<store::HostSecret> published;  ///< on the host of the store, when the job was given no secret
  std::unique_ptr<store::StoreServer> server;    ///< only where it is hosted
  std::optional<store::StoreClient> client;
};

/// Whether rank 0 hosts the job's store; otherwise the launcher does.
bool rank_zero_hosts(const LaunchEnvironment& launch);

/// Connects to the job's store, and hosts it where `launch` says that this process does.
/// `secret` is what the job was given. Without one, a store on the loopback address of a single host makes its own; for
/// any other store every rank throws ConfigError.
/// A store that sends nothing for `silence` is regarded as lost.
/// Collective: over the job. Blocks: until the store is reached, at most `timeout`.
std::shared_ptr<JobStore> reach_job_store(const LaunchEnvironment& launch, const std::optional<store::Secret>& secret,
                                          std::chrono::milliseconds timeout, std::chrono::milliseconds silence);

}  // namespace tessera::comm
