#pragma once

#include <tessera/comm/communicator.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/world_context.h"

namespace tessera {

/// The ranks behind a Communicator. Connects to them when first used, once for each strategy that is used.
class Group {
 public:
  /// `ranks` are world ranks, this process's among them.
  Group(std::shared_ptr<comm::WorldContext> world, std::string name, std::vector<int> ranks);
  /// Blocks: until messages that were sent and dropped have arrived, at most the world's timeout.
  ~Group();

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  comm::WorldContext& world() const { return *world_; }
  const std::shared_ptr<comm::WorldContext>& shared_world() const { return world_; }
  /// Counts collectives and messages separately: all members make the same collectives, but not the same messages.
  std::uint64_t next_sequence(bool is_collective) { return is_collective ? ++num_collectives_ : ++num_messages_; }
  /// The number of this group in the world's recorder.
  std::uint32_t recorded_as() const { return recorded_as_; }
  bool spans_nodes() const { return spans_nodes_; }

  /// Blocks: at the first call, until the members are connected.
  const comm::Connection& connection();
  /// The backend that carries tensors on a device. Blocks: at the first call for devices of its kind.
  c10d::Backend& device_backend(const at::Device& device);
  /// The backend that carries `num_bytes` of the CPU by `strategy`. Resolves the adaptive strategy.
  c10d::Backend& backend(CommunicationStrategy strategy, std::int64_t num_bytes);
  /// With the backend for devices of this kind, and the CPU's.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group(const at::Device& device);

  /// Keeps a message that no caller waits for, and the tensors that it moves, until it is done.
  void adopt(std::unique_ptr<Transfer> transfer, std::vector<at::Tensor> kept, bool outgoing);
  /// The same for a call on a device.
  void adopt(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> kept);

  /// A name for a new subgroup, the same on all its members and different from every other.
  std::string child_name(const std::vector<int>& world_ranks, const std::string& name);

 private:
  const comm::ConnectRequest& request();
  c10::intrusive_ptr<c10d::Backend> make_backend(CommunicationStrategy strategy);

  std::shared_ptr<comm::WorldContext> world_;
  std::string name_;
  std::vector<int> ranks_;
  int rank_ = -1;
  bool spans_nodes_ = false;
  std::uint32_t recorded_as_ = 0;
  std::uint64_t num_collectives_ = 0;
  std::uint64_t num_messages_ = 0;
  std::mutex mutex_;
  std::optional<comm::ConnectRequest> request_;
  std::optional<comm::Connection> connection_;
  std::array<c10::intrusive_ptr<c10d::Backend>, 5> backends_;  // by strategy
  std::map<c10::DeviceType, c10::intrusive_ptr<c10d::Backend>> device_backends_;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  std::map<std::string, int> children_;
  /// The order of the members destroys a message before its tensors, and both before the connection.
  struct Adopted {
    std::vector<at::Tensor> kept;
    std::unique_ptr<Transfer> transfer;
    bool outgoing;
  };
  std::vector<Adopted> adopted_;
  struct AdoptedWork {
    std::vector<at::Tensor> kept;
    c10::intrusive_ptr<c10d::Work> work;
  };
  std::vector<AdoptedWork> adopted_works_;
};

}  // namespace tessera
