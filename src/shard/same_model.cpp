#include <tessera/shard/same_model.h>

#include <tessera/comm/texts.h>
#include <tessera/core/error.h>
#include <tessera/shard/global_slice.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace tessera {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// FNV-1a: the ranks may run other builds, and std::hash promises nothing between them.
std::int64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211U;
  return static_cast<std::int64_t>(hash >> 1);
}

std::int64_t reduced(const Communicator& comm, std::int64_t value, ReduceOp op) {
  const at::Tensor tensor = at::full({1}, value, at::kLong);
  comm.all_reduce(tensor, op);
  return tensor.item<std::int64_t>();
}

std::string first_difference(const std::vector<std::string>& mine, const std::vector<std::string>& theirs, int rank) {
  const std::string who = "rank " + std::to_string(rank);
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i] != theirs[i]) return who + " has \"" + mine[i] + "\" where rank 0 has \"" + theirs[i] + "\"";
  }
  const bool more = mine.size() > theirs.size();
  return std::string("only ") + (more ? who : "rank 0") + " has \"" +
         (more ? mine[theirs.size()] : theirs[mine.size()]) + "\"";
}

}  // namespace

std::vector<std::string> described(const NamedTensors& state) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const at::Tensor& tensor = state.tensors[i];
    std::ostringstream line;
    line << state.names[i] << ": " << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
    // Elements travel in the order in which they lie in memory.
    if (!tensor.is_contiguous()) line << ", strides " << tensor.strides();
    if (!tensor.requires_grad()) line << ", without gradient";
    // Ranks with other parts of a tensor would be taken for copies of one another.
    if (const Slice slice = global_slice(tensor); !slice.is_whole()) line << ", " << slice.text();
    lines.push_back(line.str());
  }
  return lines;
}

void require_same_lines(const Communicator& comm, const std::vector<std::string>& mine, const std::string& fail_how,
                        const std::string& advice) {
  const std::int64_t hash = hash_of(joined(mine));
  if (reduced(comm, hash, ReduceOp::kMin) == reduced(comm, hash, ReduceOp::kMax)) return;
  const auto theirs = split_lines(broadcast_text(comm, joined(mine), 0));
  const bool differs = mine != theirs;
  const int culprit = static_cast<int>(reduced(comm, differs ? comm.rank() : comm.size(), ReduceOp::kMin));
  const std::string what =
      broadcast_text(comm, comm.rank() == culprit ? first_difference(mine, theirs, culprit) : "", culprit);
  throw ConfigError("the ranks of group " + comm.name() + " " + fail_how + ": " + what + ". " + advice);
}

}  // namespace tessera
