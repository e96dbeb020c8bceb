#include <tessera/comm/texts.h>

#include <ATen/ATen.h>

#include <cstring>

namespace tessera {
namespace {

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

}  // namespace

std::string broadcast_text(const Communicator& comm, const std::string& text, int root) {
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  comm.broadcast(length, root);
  const at::Tensor bytes = comm.rank() == root ? bytes_of(text) : at::zeros({length.item<std::int64_t>()}, at::kByte);
  comm.broadcast(bytes, root);
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

std::vector<std::string> all_gather_texts(const Communicator& comm, const std::string& text) {
  const at::Tensor lengths = comm.all_gather(at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong));
  const auto longest = lengths.max().item<std::int64_t>();
  // Padded to one length, which every backend gathers in one call.
  const at::Tensor mine = at::zeros({1, longest}, at::kByte);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  const at::Tensor all = comm.all_gather(mine);
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < comm.size(); ++rank) {
    const auto length = static_cast<std::size_t>(lengths[rank].item<std::int64_t>());
    texts.emplace_back(static_cast<const char*>(all.data_ptr()) + rank * longest, length);
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
