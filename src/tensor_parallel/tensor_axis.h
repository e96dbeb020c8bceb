#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace tessera::tp {

/// What is sent, in the words of the report.
enum class Transfer : std::uint8_t { kSum, kGradientSum, kGather, kGradientGather };

/// Where in the model: the operator, and the parameter whose cut made it act.
struct Site {
  std::string op;
  std::string parameter;
  auto operator<=>(const Site&) const = default;
};

struct Traffic {
  std::int64_t num_calls = 0;
  std::int64_t num_bytes = 0;  ///< of the tensors that are summed, or that result from a gather
};

/// The ranks that share one model by tensor parallelism, and what they have sent.
/// Thread-safety: the log may be used from any thread, since backward passes have threads of their own.
class TensorAxis {
 public:
  TensorAxis(Communicator comm, bool strict, std::int64_t num_checked_inputs = 0);

  const Communicator& comm() const { return comm_; }
  int size() const { return size_; }
  int rank() const { return rank_; }
  bool is_strict() const { return strict_; }

  /// One object for each site, as long as the axis lives.
  const Site* site(std::string_view op, const std::string* parameter);
  const std::string* parameter(const std::string& name);

  /// While gather() holds a parameter whole, what was computed from its part before is of no use: it would miss writes
  /// to the whole, a write to it would be lost, and a rank may be alone.
  void hold_whole(const std::string* parameter);
  void let_go(const std::string* parameter);
  /// Throws ConfigError if it is held.
  void require_not_held(const std::string* parameter, std::string_view op) const;
  /// Throws ConfigError if any parameter is.
  void require_none_held(std::string_view what) const;
  bool is_held() const;
  /// Of all axes of the process: as a rule none is, and nobody has to be asked.
  static bool is_any_held();

  /// In place, and logged. Errors that are kept on this thread are thrown before other ranks are waited for.
  void all_reduce(const at::Tensor& tensor, ReduceOp op, Transfer transfer, const Site* site);
  /// The sum, as a collective under way.
  Work all_reduce_async(const at::Tensor& tensor, Transfer transfer, const Site* site);
  void log(Transfer transfer, const Site* site, std::int64_t num_bytes);
  /// Notes that the operator had no rule; true the first time.
  bool log_gathered(const Site* site);
  struct Entry {
    Transfer transfer;
    Site site;
    Traffic traffic;
    bool has_rule;
  };
  std::vector<Entry> take_log();

  /// Compares a whole tensor between the ranks, for the first so many. Throws ConfigError when it differs.
  void check_same(const at::Tensor& whole, const Site* site);
  bool checks_inputs() const { return num_unchecked_ > 0; }

  /// The node that `enter()` made for this edge, if a graph still holds it; see Note [One f for all consumers].
  using NodePtr = c10::intrusive_ptr<torch::autograd::Node>;
  NodePtr find_entry(const torch::autograd::Node* node, std::uint32_t input) const;
  void remember_entry(const torch::autograd::Node* node, std::uint32_t input, const NodePtr& entry);

 private:
  struct Entries;

  [[noreturn]] void refuse_held(const std::string& what) const;

  Communicator comm_;
  int size_;
  int rank_;
  bool strict_;
  std::atomic<std::int64_t> num_unchecked_;
  mutable std::mutex mutex_;
  std::map<Site, Site*> sites_;
  std::vector<std::unique_ptr<Site>> site_objects_;
  std::map<std::string, std::unique_ptr<std::string>> parameters_;
  std::map<std::pair<Transfer, const Site*>, Traffic> traffic_;
  std::map<const Site*, bool> gathered_;
  std::multiset<const std::string*> held_;
  std::shared_ptr<Entries> entries_;
};

}  // namespace tessera::tp
