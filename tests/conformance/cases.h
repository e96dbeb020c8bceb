#pragma once

#include <tessera/comm/communicator.h>

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/reference.h"

namespace tessera::testing {

/// Counts cases and remembers those that failed. All tensors of the cases are on its device.
class Tally {
 public:
  explicit Tally(const at::Device& device) : device_(device) {}

  const at::Device& device() const { return device_; }
  at::TensorOptions on_device(at::ScalarType dtype) const { return at::TensorOptions(device_).dtype(dtype); }
  void check(const std::string& name, const std::string& fault);
  void refused(const std::string& name, bool was_refused);

  std::int64_t num_cases() const { return num_cases_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  at::Device device_;
  std::int64_t num_cases_ = 0;
  std::vector<std::string> failures_;
};

inline std::size_t index_of(const Communicator& comm) { return static_cast<std::size_t>(comm.rank()); }

/// Every collective on one type and size.
void run_reductions(const Communicator& comm, at::ScalarType dtype, std::int64_t count, Tally& tally);
void run_movements(const Communicator& comm, at::ScalarType dtype, std::int64_t count, Tally& tally);
/// Several operations under way at once, in the group and in subgroups.
void run_concurrent(const Communicator& comm, at::ScalarType dtype, std::int64_t count, Tally& tally);
/// What must be refused, and shapes that only some dimensions have.
void run_shapes(const Communicator& comm, Tally& tally);

/// All of the above for every type and size that the project promises.
void run_all(const Communicator& comm, Tally& tally);

}  // namespace tessera::testing
