#include <tessera/comm/communicator.h>
#include <tessera/comm/strategy.h>
#include <tessera/comm/texts.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace tessera {
namespace {

constexpr std::array<std::string_view, 5> kStrategies = {"allreduce", "ring", "tree", "hierarchical", "adaptive"};

}  // namespace

std::string_view to_string(ReduceOp op) {
  constexpr std::array<std::string_view, 5> kNames = {"sum", "avg", "min", "max", "product"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view to_string(CommunicationStrategy strategy) { return kStrategies[static_cast<std::size_t>(strategy)]; }

CommunicationStrategy parse_communication_strategy(std::string_view name) {
  for (std::size_t i = 0; i < kStrategies.size(); ++i) {
    if (kStrategies[i] == name) return static_cast<CommunicationStrategy>(i);
  }
  throw ConfigError("there is no communication strategy \"" + std::string(name) +
                    "\"; choose allreduce, ring, tree, hierarchical or adaptive");
}

namespace {

// Most texts are short. They travel beside their length; only longer ones take a second call.
constexpr std::int64_t kLengthBytes = sizeof(std::int64_t);
constexpr std::int64_t kMessageBytes = 1024;
constexpr std::int64_t kShortBytes = kMessageBytes - kLengthBytes;

at::Tensor message_of(const std::string& text) {
  const at::Tensor message = at::zeros({1, kMessageBytes}, at::kByte);
  auto* const bytes = static_cast<char*>(message.data_ptr());
  const auto length = static_cast<std::int64_t>(text.size());
  std::memcpy(bytes, &length, kLengthBytes);
  std::memcpy(bytes + kLengthBytes, text.data(), static_cast<std::size_t>(std::min(length, kShortBytes)));
  return message;
}

/// The length of the text in one row of `messages`.
std::int64_t length_in(const at::Tensor& messages, std::int64_t row) {
  std::int64_t length = 0;
  std::memcpy(&length, static_cast<const char*>(messages.data_ptr()) + row * kMessageBytes, kLengthBytes);
  return length;
}

/// `length` bytes of a row, from `first` on.
std::string text_in(const at::Tensor& rows, std::int64_t row, std::int64_t first, std::int64_t length) {
  const char* const bytes = static_cast<const char*>(rows.data_ptr()) + row * rows.size(1) + first;
  return {bytes, static_cast<std::size_t>(length)};
}

}  // namespace

std::string broadcast_text(const Communicator& comm, const std::string& text, int root) {
  const at::Tensor message = message_of(text);
  comm.broadcast(message, root);
  const std::int64_t length = length_in(message, 0);
  if (length <= kShortBytes) return text_in(message, 0, kLengthBytes, length);
  const at::Tensor bytes = at::zeros({1, length}, at::kByte);
  if (comm.rank() == root) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  comm.broadcast(bytes, root);
  return text_in(bytes, 0, 0, length);
}

std::vector<std::string> all_gather_texts(const Communicator& comm, const std::string& text) {
  const at::Tensor messages = comm.all_gather(message_of(text));
  std::int64_t longest = 0;
  for (std::int64_t rank = 0; rank < comm.size(); ++rank) longest = std::max(longest, length_in(messages, rank));
  at::Tensor rows = messages;
  if (longest > kShortBytes) {
    // Padded to one length, which every backend gathers in one call.
    const at::Tensor mine = at::zeros({1, longest}, at::kByte);
    std::memcpy(mine.data_ptr(), text.data(), text.size());
    rows = comm.all_gather(mine);
  }
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < comm.size(); ++rank) {
    texts.push_back(text_in(rows, rank, longest > kShortBytes ? 0 : kLengthBytes, length_in(messages, rank)));
  }
  return texts;
}

std::string first_report(const std::vector<std::string>& texts) {
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return "rank " + std::to_string(rank) + ": " + texts[rank];
  }
  return {};
}

}  // namespace tessera
